"""The warnings of a `fit` and an `evaluate`: Keras's own, in its words, so that filters for them match."""

import warnings

import keras
import pytest
import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator

from overlap_train import Trainer
from overlap_train._keras import data as keras_data
from overlap_train._keras.names import BEFORE_3_16
from tests.networks import arrays, linear
from tests.pools import sequential
from tests.whole_fits.comparing import AHEAD, IN_STEP, in_turn, slices

X, Y = arrays(40)
XV, YV = arrays(24, 1)
ENDS = 3 if BEFORE_3_16 else 0  # of which Keras up to 3.15 warns each time


class Batches(keras.utils.PyDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return X[:8], Y[:8]


def dataset(x=X, y=Y):
    return slices(x, y).batch(8)


def unknown():
    return dataset().filter(lambda x, y: True)


def generator(count=5):
    return ((X[:8], Y[:8]) for _ in range(count))


def warned(call, action="always"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        call()
    said = [(w, str(w.message)) for w in caught if issubclass(w.category, UserWarning)]
    # Keras's own code warns of a shuffle, of a line of its caller.
    return [(w.category, text, *(() if "shuffle" in text else (w.filename, w.lineno))) for w, text in said]


class Draws(keras.Sequential):
    """Is validated in step, by Keras's own `evaluate`, for what its `test_step` draws."""

    def test_step(self, data):
        tf.random.uniform(())
        return super().test_step(data)


def drawing():
    return linear(kind=Draws)


HOWS = ["at once", "in step", "ahead"]


def trained(how, *data, **arguments):
    model = drawing() if how == "in step" else sequential()
    policy = IN_STEP if how == "at once" else None
    fit = model.fit if how == "keras" else Trainer(model, validation=policy).fit
    return warned(lambda: fit(*data, verbose=0, **arguments))


DATA = {
    "arrays": lambda: (X, Y),
    "dataset": lambda: (dataset(),),
    "endless": lambda: (dataset().repeat(),),
    "generator": lambda: (generator(20),),
    "PyDataset": lambda: (Batches(5),),
    "endless PyDataset": lambda: (Batches(None),),
}
ENDLESS = {"endless", "generator", "endless PyDataset"}


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
@pytest.mark.parametrize("name", DATA)
@pytest.mark.by_default("dataset-True", "endless-True")
def test_shuffle_is_ignored_with_the_warning_of_keras(name, shuffle):
    arguments = dict(shuffle=shuffle, steps_per_epoch=2 if name in ENDLESS else None)
    expected = trained("keras", *DATA[name](), **arguments)
    assert len(expected) == (name not in ("arrays", "PyDataset") and bool(shuffle))
    assert trained("ours", *DATA[name](), **arguments) == expected


def asserted():
    return dataset().apply(tf.data.experimental.assert_cardinality(5)).take(3)


TOO_FEW = {name: DATA[name] for name in ("arrays", "dataset", "PyDataset")}
TOO_FEW |= {"of no known size": lambda: (unknown(),), "of another size than it says": lambda: (asserted(),)}
TOO_FEW |= {"generator": lambda: (generator(),)}


@pytest.mark.by_default("dataset", "of another size than it says")
@pytest.mark.parametrize("name", TOO_FEW)
def test_training_data_that_runs_out_is_told_as_by_keras(name):
    arguments = dict(steps_per_epoch=7, epochs=1, batch_size=8 if name == "arrays" else None, shuffle=False)
    expected = trained("keras", *TOO_FEW[name](), **arguments)
    assert len(expected) == 1
    assert trained("ours", *TOO_FEW[name](), **arguments) == expected


VALIDATED = {
    "arrays": lambda: dict(validation_data=(XV, YV), validation_batch_size=8, validation_steps=9),
    "dataset": lambda: dict(validation_data=dataset(XV, YV), validation_steps=9),
}


@pytest.mark.by_default("dataset-ahead")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("data", VALIDATED)
def test_validation_data_that_runs_out_is_told_each_time_as_by_keras(data, how):
    expected = trained("keras", X, Y, epochs=2, **VALIDATED[data]())
    assert len(expected) == 2
    assert trained(how, X, Y, epochs=2, **VALIDATED[data]()) == expected


@pytest.mark.parametrize("hook", [None, "on_test_batch_end"])
def test_an_evaluate_of_too_few_batches_is_told_as_by_keras(hook):
    def run(trained):
        methods = {hook: lambda *_, **__: None} if hook else {}
        callbacks = [type("Own", (keras.callbacks.Callback,), methods)()]
        given = dict(batch_size=8, steps=9, verbose=0, callbacks=callbacks)
        return warned(lambda: trained.evaluate(XV, YV, **given))

    expected, actual, _ = in_turn(run)
    assert len(expected) == 1
    assert actual == expected


@pytest.mark.parametrize("patience", [1, 2])
def test_an_epoch_that_never_was_warns_of_nothing(patience):
    def told(fit):  # five batches last for two epochs
        stops = keras.callbacks.EarlyStopping("loss", patience=patience, min_delta=10)
        more = dict(epochs=4, steps_per_epoch=2, validation_data=(XV, YV), callbacks=[stops], verbose=0)
        return warned(lambda: fit(dataset(), shuffle=False, **more))

    ours = told(Trainer(sequential(), validation=AHEAD).fit)
    assert len(ours) == patience - 1
    assert ours == told(sequential().fit)


def test_a_generator_that_ends_trains_on_what_keras_looked_at_and_is_told_once():
    counted = []
    for how in ("keras", "ours"):
        batches = []
        counts = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_, batches=batches: batches.append(0),
            on_train_batch_end=lambda batch, logs, batches=batches: batches.append(batches.pop() + 1),
        )
        said = trained(how, generator(7), epochs=4, callbacks=[counts], shuffle=False)
        assert len(said) == (bool(ENDS) if how == "ours" else ENDS and 4)
        counted.append(batches)
    assert counted[1] == counted[0] == [7, 2, 2, 2]


OUT_OF_DATA = {
    "training": lambda trainer: trainer.fit(dataset(), epochs=1, steps_per_epoch=9, verbose=0, shuffle=False),
    "validation": lambda trainer: trainer.fit(
        X, Y, epochs=1, validation_data=(XV, YV), validation_steps=9, validation_batch_size=8, verbose=0
    ),
    "evaluate": lambda trainer: trainer.evaluate(XV, YV, batch_size=8, steps=9, verbose=0),
}


@pytest.mark.by_default("evaluate-drawing")
@pytest.mark.parametrize("make", [sequential, drawing])
@pytest.mark.parametrize("name", OUT_OF_DATA)
def test_it_is_told_of_the_line_of_keras_and_once_by_default(name, make):
    def told(trained):
        return warned(lambda: [OUT_OF_DATA[name](trained) for _ in range(2)], "default")

    expected = told(make())
    assert len(expected) == 1
    assert told(Trainer(make())) == expected


def test_it_is_told_in_the_words_of_keras():
    with pytest.warns(UserWarning, match="Your input") as caught:
        EpochIterator._interrupted_warning(None)
    assert str(caught[0].message) == keras_data._OUT_OF_DATA
