"""`Trainer`: what it is given, what it tells, and models that bring a `fit` of their own."""

import keras
import pytest

from overlap_train import Trainer
from tests import networks
from tests.networks import arrays, assert_same_history
from tests.pools import sequential
from tests.whole_fits.test_contract import scaled

kc = keras.callbacks
X, Y = arrays(70)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(("model", value, "a keras.Model") for value in (None, "model", sequential)),
        *(("preprocess", value, "a function of a batch or None") for value in (3, "scale")),
        *(("validation", value, ".*") for value in (3, "block")),
        ("recorder", [], ".*"),
        ("in_memory_bytes", None, ".*"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(name, value, expected):
    with pytest.raises(TypeError, match=rf"{name} must be {expected}; got \S"):
        Trainer(**{"model": sequential(), name: value})


def test_a_fit_that_calls_the_trainer_goes_on_working():
    class Modern(keras.Sequential):
        def fit(self, x, y, **kwargs):
            return Trainer(self).fit(x / 100, y, **kwargs)

    expected, model, other = scaled(), scaled(Modern), scaled(Modern)
    wanted = expected.fit(X * 100, Y, epochs=2, verbose=0, shuffle=False).history
    assert_same_history(model.fit(X * 100, Y, epochs=2, verbose=0, shuffle=False).history, wanted)
    history = Trainer(other).fit(X * 100, Y, epochs=2, verbose=0, shuffle=False).history
    assert_same_history(history, wanted)


def test_without_a_validation_there_is_no_test_function():
    model = networks.sequential()  # not one of a pool, which may have been validated
    Trainer(model).fit(X, Y, verbose=0)
    assert model.test_function is None


def test_an_evaluation_comes_as_keras_returns_it():
    model = sequential()
    trainer = Trainer(model)
    loss, accuracy = trainer.evaluate(X, Y, verbose=0)
    assert trainer.evaluate(X, Y, verbose=0, return_dict=True) == {"loss": loss, "accuracy": accuracy}
    assert trainer.ended is None


def test_a_method_of_the_users_gets_only_what_was_asked_for():
    class Narrow(keras.Sequential):
        def fit(self, x, y, epochs):
            self.asked = epochs
            return kc.History()

    trainer = Trainer(scaled(Narrow))
    trainer.fit(X, Y, epochs=3)
    assert trainer.model.asked == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch_size'"):
        trainer.fit(X, Y, epochs=3, batch_size=7)


def test_a_method_of_the_users_may_have_other_arguments_than_keras_s():
    class Pairs(keras.Sequential):
        def fit(self, data, *rest, times=1, **options):
            self.asked = rest, options
            return super().fit(*data, *rest, epochs=times, verbose=0, **options)

        def evaluate(self, inputs):
            return super().evaluate(*inputs, verbose=0)

    expected, trainer = scaled(Pairs), Trainer(scaled(Pairs))
    wanted = expected.fit((X, Y), 16, times=3, shuffle=False).history
    assert_same_history(trainer.fit((X, Y), 16, times=3, shuffle=False).history, wanted)
    assert trainer.model.asked == expected.asked == ((16,), {"shuffle": False})
    assert trainer.evaluate((X, Y)) == pytest.approx(expected.evaluate((X, Y)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        trainer.evaluate(x=(X, Y))


def test_a_trainer_shows_what_its_last_fit_gained():
    trainer = Trainer(sequential())
    assert repr(trainer) == f"<Trainer of {trainer.model.name!r}: not trained yet>"
    assert trainer.account is None
    history = trainer.fit(X, Y, epochs=2, validation_data=(X, Y), verbose=0)
    assert repr(trainer) == f"<Trainer of {trainer.model.name!r}: completed, 2 epochs; {trainer.account}>"
    assert str(trainer.account).startswith("validation ")
    assert (history.account, history.accounts) == (trainer.account, trainer.accounts)
    page = trainer._repr_html_()
    assert page.count("<tr>") == 1 + 1 + 2 + 1, "a heading, the preparation, the epochs, the total"
    assert "val_loss" in page
