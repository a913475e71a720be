"""A list's own hooks are called as Keras calls them: those of a subclass, an instance, a replaced class."""

from __future__ import annotations

from unittest import mock

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._callbacks.listeners import is_custom, listeners, remembering
from tests.networks import arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays(48)
VALIDATION = arrays(24, 1)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")
Stock = keras.callbacks.CallbackList
BATCH = "on_train_batch_end"
EVERY = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", BATCH, "on_epoch_end", "on_train_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"),
)


class Counts(keras.callbacks.Callback):
    """Counts apart, so that it could be called late."""

    def __init__(self, heard):
        super().__init__()
        self.heard = heard

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append(("member", batch))


def noting(hook, heard, act):
    """Returns a hook of a list that notes its calls, does what Keras's does, and acts."""

    def note(self, *args, **kwargs):
        heard.append((hook, *(arg for arg in args if isinstance(arg, int))))
        getattr(Stock, hook)(self, *args, **kwargs)
        act(self._model, heard)

    return note


def nothing(model, heard): ...


def lower_the_rate(model, heard):
    model.optimizer.learning_rate = 0.1 / len(heard)


def stop_in_time(model, heard):
    model.stop_training = len(heard) > 8


def end_the_validation(model, heard):
    model.stop_evaluating = True


def of_class(*hooks, act=lower_the_rate):
    def make(heard):
        kind = type("Mine", (Stock,), {hook: noting(hook, heard, act) for hook in hooks})
        return kind([Counts(heard)], add_history=True)

    return make


def on_the_list(hook):
    def make(heard):
        made = Stock([Counts(heard)], add_history=True)
        setattr(made, hook, noting(hook, heard, lower_the_rate).__get__(made))
        return made

    return make


def asking(heard):
    class Asking(Stock):
        def __getattribute__(self, name):
            if name in EVERY:
                heard.append(name)
            return super().__getattribute__(name)

    return Asking([], add_history=True)


def leaving_out(heard):
    class LeavingOut(Stock):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 2:
                super().on_train_batch_end(batch, logs)

    return LeavingOut([Counts(heard)], add_history=True)


def changed_meanwhile(heard):
    def change(model, _):
        made.on_epoch_begin = noting("on_epoch_begin", heard, lower_the_rate).__get__(made)

    made = of_class("on_epoch_end", act=change)(heard)
    return made


def adding_to_logs(heard):
    class Adding(Stock):
        def on_test_end(self, logs=None):
            logs["mine"] = float(len(heard))
            super().on_test_end(logs)

        def on_epoch_end(self, epoch, logs=None):
            heard.append(sorted(logs))
            super().on_epoch_end(epoch, logs)

    return Adding([Counts(heard)], add_history=True)


CASES = {
    "every hook": of_class(*EVERY, act=nothing),
    "each batch": of_class(BATCH),
    "ends the training": of_class("on_train_batch_begin", act=stop_in_time),
    "ends the validation": of_class("on_test_begin", act=end_the_validation),
    "set on the list": on_the_list(BATCH),
    "says what it has": asking,
    "leaves calls out": leaving_out,
    "adds to the logs": adding_to_logs,
    "changed meanwhile": changed_meanwhile,
}


def trained(fit, model, make):
    heard = []
    listed = make(heard)
    listed.set_model(model)
    asked = dict(batch_size=8, epochs=3, shuffle=False, verbose=0, validation_data=VALIDATION)
    history = fit(X, Y, callbacks=listed, **asked).history
    return history, heard


@pytest.mark.nightly
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.by_default("leaves calls out")
def test_a_fit_calls_what_keras_calls_in_its_order(make):
    models = sequential(), sequential()
    expected, heard = trained(models[0].fit, models[0], make)
    actual, heard_by_ours = trained(Trainer(models[1], validation=AHEAD).fit, models[1], make)
    assert heard_by_ours == heard
    assert_same_history(actual, expected)
    assert_same_weights(*models)


@pytest.mark.by_default("CallbackList")
@pytest.mark.parametrize("owner", [Stock, keras.callbacks.Callback])
def test_what_is_put_into_the_class_of_all_lists_or_callbacks_acts(owner):
    def run(fit, model):
        heard, stock = [], getattr(owner, BATCH)

        def put(self, batch, logs=None):
            heard.append(batch)
            model.optimizer.learning_rate = 0.1 / len(heard)
            stock(self, batch, logs)

        with mock.patch.object(owner, BATCH, put):
            history = fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False, validation_data=VALIDATION)
        return history.history, heard

    models = sequential(), sequential()
    expected, heard = run(models[0].fit, models[0])
    actual, heard_by_ours = run(Trainer(models[1], validation=AHEAD).fit, models[1])
    assert heard_by_ours == heard
    assert_same_history(actual, expected)


@pytest.mark.parametrize("make", [of_class(*EVERY, act=nothing), on_the_list("on_test_batch_end")])
def test_an_evaluation_calls_them_too(make):
    found = []
    for ours in (False, True):
        model, heard = sequential(), []
        listed = make(heard)
        listed.set_model(model)
        evaluate = Trainer(model).evaluate if ours else model.evaluate
        evaluate(*VALIDATION, batch_size=8, verbose=0, callbacks=listed)
        found.append(heard)
    assert found[1] == found[0] != []


def test_a_member_that_ends_the_training_is_told_once_and_a_message_names_the_list(capsys):
    def make(heard):
        made = of_class(BATCH, act=nothing)(heard)
        made.callbacks.append(keras.callbacks.TerminateOnNaN())
        return made

    found = []
    for ours in (False, True):
        model = sequential()
        model.optimizer.learning_rate = 1e30
        trainer = Trainer(model, validation=AHEAD)
        found.append(trained((trainer if ours else model).fit, model, make)[1])
        found.append(capsys.readouterr().out)
    assert found[2:] == found[:2]
    assert found[1].count("Invalid loss") == 1
    assert any("in step" in message and "Mine" in message for message in trainer.messages)


def test_a_list_that_may_run_other_code_than_keras_s_stands_among_its_callbacks():
    member = Counts([])
    assert listeners(Stock([member])) == [member]
    own, *members = listeners(on_the_list("on_test_end")([]))
    assert type(own).__name__ == "CallbackList"
    assert [type(callback) for callback in members] == [Counts, keras.callbacks.History]
    assert is_custom(asking([]))
    with mock.patch.object(Stock, "on_test_batch_end", autospec=True):
        assert is_custom(Stock([]))
    assert not is_custom(Stock([]))


class Duck:
    """No callback of Keras's, but has what Keras calls."""

    __slots__ = ("heard", "model")

    def __init__(self, heard):
        self.heard, self.model = heard, None

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._hear(name, args)

    def _hear(self, name, args):
        self.heard.append((name, *(arg for arg in args if isinstance(arg, int))))
        if name == BATCH:
            lower_the_rate(self.model, self.heard)

    def set_model(self, model):
        self.model = model

    def set_params(self, params): ...


@pytest.mark.nightly
def test_what_has_only_the_methods_of_a_callback_is_called_as_one():
    def run(fit):
        heard = []
        history = fit(X, Y, epochs=2, verbose=0, validation_data=VALIDATION, callbacks=Duck(heard))
        return history.history, heard

    models = sequential(), sequential()
    expected, heard = run(models[0].fit)
    actual, heard_by_ours = run(Trainer(models[1], validation=AHEAD).fit)
    assert heard_by_ours == heard
    assert_same_history(actual, expected)


def test_a_list_remembers_something_only_if_its_class_is_the_user_s():
    class Mine(Stock):
        pass

    member = keras.callbacks.History()
    mine, stock = Mine([member]), Stock([member])
    assert remembering(mine) == [member, mine]
    assert remembering(stock) == [member]
