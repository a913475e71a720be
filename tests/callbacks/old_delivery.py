"""Contracts C4 and C5: callbacks see the model as it was, and what they change leads back to it."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.delivery import Begun, Checks, Delivery
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._validation.evaluation import Running
from overlap_train.records import ShardOutcome, Span, ValidationResult


class Act(keras.callbacks.Callback):
    """Does something at the end of an epoch and writes down what it saw."""

    def __init__(self, act=lambda model: None):
        super().__init__()
        self.act = act
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, float(self.model.layers[0].kernel[0, 0]), dict(logs)))
        self.act(self.model)


class Suite:
    """Validates at once: the loss is the weight, of the values or of the model as it is.

    Args:
        live: the sets that are validated live.
        fails: whether their validation fails and is left out.
    """

    def __init__(self, *live, fails=False):
        self.live = live
        self.fails = fails

    def evaluate(self, name, values, most=None):
        return ValidationResult({"loss": float(values.trainable[0][0, 0])})

    def draws_anew(self, name):
        return False

    def live_sets(self, epoch):
        return list(self.live)

    def validate_live(self, name, snapshot, callbacks):
        if self.fails:
            return None
        callbacks.on_test_begin()
        result = ValidationResult({"loss": float(callbacks.model.layers[0].kernel[0, 0])})
        callbacks.on_test_end(dict(result.metrics))
        span = Span("validate", "MainThread", 1.0, 2.0, snapshot.epoch, snapshot.step, {"shard": 0})
        return ShardOutcome(result, span, result)


def deliver(
    act, *, on_change="rollback", trained_on=True, stops=False, callback=None, suite=None, results=None
):
    """Takes a snapshot at weight 1.0, trains on to 2.0 and delivers; returns all that matters."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.stop_training = False
    kernel = model.layers[0].kernel
    callback = callback or Act(act)
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    state = ModelState(model)
    kernel.assign([[1.0]])
    snapshot = Snapshot(3, 10, state.read())
    if trained_on:
        kernel.assign([[2.0]])
    delivery = Delivery(model, state, callbacks, on_change=on_change, suite=suite or Suite())
    results = {"": ValidationResult({"loss": 0.25})} if results is None else results
    outcome = delivery.deliver(snapshot, {"loss": 0.5}, results, stops=stops, trained_on=trained_on)
    return model, callback, outcome, float(kernel[0, 0])


def test_a_callback_that_only_reads_sees_the_snapshot_and_changes_nothing():
    model, callback, outcome, weight = deliver(lambda model: None)
    assert callback.seen == [(3, 1.0, {"loss": 0.5, "val_loss": 0.25})]
    assert weight == 2.0
    assert (outcome.stop, outcome.reason, outcome.rolled_back) == (False, None, False)
    assert not model.stop_training


class BeginsOnly(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise AssertionError("no epoch begins here")


class OwnHistory(keras.callbacks.History):
    """Looks at the model, which Keras's own does not."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.weight = float(self.model.layers[0].kernel[0, 0])


@pytest.mark.parametrize("callback", [keras.callbacks.History(), BeginsOnly()])
def test_values_stay_where_they_are_if_nobody_looks(callback, monkeypatch):
    for name in ("restore", "changed"):
        monkeypatch.setattr(ModelState, name, lambda *_: pytest.fail("the values were moved or compared"))
    callback.on_train_begin()
    _, _, outcome, weight = deliver(None, callback=callback)
    assert weight == 2.0
    assert outcome.logs == {"loss": 0.5, "val_loss": 0.25}
    assert (outcome.stop, outcome.reason, outcome.rolled_back) == (False, None, False)
    assert float(outcome.values.trainable[0][0, 0]) == 1.0
    if isinstance(callback, keras.callbacks.History):
        assert callback.history == {"loss": [0.5], "val_loss": [0.25]}


@pytest.mark.parametrize("callback", [keras.callbacks.History(), Act()], ids=["unseen", "looked at"])
def test_the_metrics_keep_what_the_last_validation_left_in_them_if_no_step_has_come_since(callback):
    """As under Keras, where a callback or a checkpoint at the end of the training reads them."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    callbacks, state = keras.callbacks.CallbackList([callback], model=model), ModelState(model)
    callback.on_train_begin()
    seen = tuple(tf.fill(v.shape, tf.cast(3, v.dtype)) for v in state.metrics)
    assert seen
    results = {"": ValidationResult({"loss": 0.25}, metric_state=seen)}
    model.stop_training = False
    snapshot = Snapshot(0, 1, state.read())
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite())
    outcome = delivery.deliver(snapshot, {}, results, stops=False, trained_on=False)
    assert [float(value) for value in state.read_metrics()] == [3.0] * len(seen)
    assert outcome.reason is None


def test_a_training_that_has_gone_on_keeps_its_metrics():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    callback, state = Act(), ModelState(model)
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    model.stop_training = False
    snapshot = Snapshot(0, 1, state.read())
    state.set_metrics([tf.fill(v.shape, tf.cast(5, v.dtype)) for v in state.metrics])
    seen = tuple(tf.fill(v.shape, tf.cast(3, v.dtype)) for v in state.metrics)
    results = {"": ValidationResult({"loss": 0.25}, metric_state=seen)}
    callback.act = lambda model: callback.seen.append([float(v) for v in state.read_metrics()])
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite())
    delivery.deliver(snapshot, {}, results, stops=False, trained_on=True)
    assert callback.seen[-1] == [3.0] * len(seen)
    assert [float(value) for value in state.read_metrics()] == [5.0] * len(seen)


def test_what_a_live_validation_changed_is_among_the_values():
    """As a seed generator in `test_step`: a checkpoint must hold it, though no callback looks at it."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.stop_training = False
    state, bias = ModelState(model), model.layers[0].bias
    callbacks = keras.callbacks.CallbackList([], model=model)

    class Drawing(Suite):
        def validate_live(self, name, snapshot, callbacks):
            bias.assign([5.0])
            return super().validate_live(name, snapshot, callbacks)

    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Drawing(""))
    outcome = delivery.deliver(Snapshot(0, 1, state.read()), {}, {}, stops=False, trained_on=False)
    assert float(outcome.values.trainable[1][0]) == 5.0
    assert not outcome.rolled_back


@pytest.mark.parametrize("trained_on", [False, True])
def test_a_live_validation_sees_the_snapshot_and_its_result_is_in_the_logs(trained_on):
    _, callback, outcome, weight = deliver(
        lambda model: None, suite=Suite("live"), results={}, trained_on=trained_on
    )
    assert callback.seen == [(3, 1.0, {"loss": 0.5, "val_live_loss": 1.0})]
    assert [(span.name, span.epoch, span.step) for span in outcome.spans] == [("validate", 3, 10)]
    assert outcome.results["live"].metrics == {"loss": 1.0}
    assert weight == (2.0 if trained_on else 1.0)
    assert not outcome.rolled_back


def test_a_live_validation_that_was_left_out_is_not_in_the_logs():
    _, callback, outcome, weight = deliver(lambda model: None, suite=Suite("live", fails=True))
    assert callback.seen == [(3, 1.0, {"loss": 0.5, "val_loss": 0.25})]
    assert outcome.spans == ()
    assert weight == 2.0


def test_a_metric_that_is_a_variable_shows_the_validations_value_in_the_training_logs():
    """Keras turns an epoch's logs into numbers after its validation."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.stop_training = False
    callbacks = keras.callbacks.CallbackList([callback := Act()], model=model)
    state = ModelState(model)
    checks = Checks(live_metrics=lambda: frozenset(["seen"]))
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite(), checks=checks)
    results = {"": ValidationResult({"loss": 0.25, "seen": 7.0})}
    snapshot, logs = Snapshot(0, 1, state.read()), {"loss": 0.5, "seen": 3.0}
    delivery.deliver(snapshot, logs, results, stops=False, trained_on=False)
    assert callback.seen[0][2] == {"loss": 0.5, "seen": 7.0, "val_loss": 0.25, "val_seen": 7.0}


def test_a_history_of_ones_own_sees_the_snapshot():
    history = OwnHistory()
    history.on_train_begin()
    deliver(None, callback=history)
    assert history.weight == 1.0


def test_a_callback_that_comes_later_sees_the_snapshot():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    callbacks, late = keras.callbacks.CallbackList([], model=model), Act()
    model.stop_training = False
    state, kernel = ModelState(model), model.layers[0].kernel
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite())
    kernel.assign([[1.0]])
    snapshot = Snapshot(0, 1, state.read())
    kernel.assign([[2.0]])
    callbacks.callbacks.append(late)
    late.set_model(model)
    delivery.deliver(snapshot, {}, {}, stops=False, trained_on=True)
    assert late.seen == [(0, 1.0, {})]


def change_rate(model):
    model.optimizer.learning_rate = 0.1


def change_weights(model):
    model.set_weights([np.array([[7.0]], "f")])


def stop(model):
    model.stop_training = True


def compile_again(model):
    model.compile(model.optimizer, "mae")


def test_a_model_compiled_anew_leads_back_to_the_snapshot():
    """The steps made since were those of the old loss."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.stop_training = False
    model.make_train_function()
    callbacks = keras.callbacks.CallbackList([Act(compile_again)], model=model)
    state, kernel = ModelState(model), model.layers[0].kernel
    kernel.assign([[1.0]])
    snapshot = Snapshot(0, 1, state.read())
    kernel.assign([[2.0]])
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite())
    outcome = delivery.deliver(snapshot, {}, {}, stops=False, trained_on=True)
    assert outcome.rolled_back
    assert not outcome.stop
    assert float(kernel[0, 0]) == 1.0


@pytest.mark.parametrize(("act", "weight"), [(change_rate, 1.0), (change_weights, 7.0), (stop, 1.0)])
def test_a_change_leads_back_to_the_snapshot_with_the_change(act, weight):
    model, _, outcome, actual = deliver(act)
    assert outcome.rolled_back
    assert actual == weight
    assert outcome.reason.startswith("a callback stopped" if act is stop else "a callback set")
    assert model.stop_training is outcome.stop is (act is stop)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 if act is change_rate else 0.5)


@pytest.mark.parametrize(("act", "weight"), [(change_rate, 2.0), (change_weights, 7.0), (stop, 2.0)])
def test_continue_applies_the_change_to_the_present_weights(act, weight):
    model, _, outcome, actual = deliver(act, on_change="continue")
    assert not outcome.rolled_back
    assert actual == weight
    assert model.stop_training is (act is stop)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 if act is change_rate else 0.5)


def begin(act, **options):
    """Delivers an epoch behind which the next one has begun, whose hooks act now; returns the outcome."""
    told = []

    def ended(outcome):
        told.append(("ended", float(outcome.values.trainable[0][0, 0])))

    def begin_next(aside):
        told.append(("begun", float(aside.trainable[0][0, 0])))
        act(model)
        return Begun({})

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.stop_training = False
    end = Act(options.pop("at_end", lambda model: None))
    callbacks, state = keras.callbacks.CallbackList([end], model=model), ModelState(model)
    kernel = model.layers[0].kernel
    kernel.assign([[1.0]])
    snapshot = Snapshot(3, 10, state.read())
    kernel.assign([[2.0]])
    delivery = Delivery(
        model, state, callbacks, on_change=options.pop("on_change", "rollback"), suite=Suite()
    )
    outcome = delivery.deliver(
        snapshot, {}, {}, stops=False, trained_on=True, ended=ended, begin_next=begin_next
    )
    return outcome, told, model, float(kernel[0, 0])


@pytest.mark.parametrize(("act", "weight"), [(change_rate, 1.0), (change_weights, 7.0), (stop, 1.0)])
def test_what_the_next_epoch_s_beginning_changes_leads_back_too(act, weight):
    outcome, told, model, actual = begin(act)
    assert told == [("ended", 1.0), ("begun", 2.0)]
    assert outcome.rolled_back
    assert not outcome.stop
    assert actual == weight
    assert model.stop_training is (act is stop)


def test_a_beginning_that_changes_nothing_leaves_the_training_alone():
    outcome, _, _, weight = begin(lambda model: None)
    assert not outcome.rolled_back
    assert weight == 2.0


def test_no_epoch_begins_behind_one_that_stops_the_training():
    outcome, told, _, weight = begin(lambda model: None, at_end=stop)
    assert outcome.stop
    assert [what for what, _ in told] == ["ended"]
    assert weight == 1.0


def test_a_change_that_the_beginning_takes_back_is_none():
    """As SwapEMAWeights does with swap_on_epoch=True."""
    outcome, told, _, weight = begin(
        lambda model: model.set_weights([np.float32([[1.0]])]), at_end=change_weights
    )
    assert told[0] == ("ended", 7.0)
    assert not outcome.rolled_back
    assert weight == 2.0


def test_nothing_is_rolled_back_where_nothing_was_trained_since():
    _, _, outcome, weight = deliver(change_weights, trained_on=False)
    assert not outcome.rolled_back
    assert weight == 7.0


def test_a_stop_inside_the_epoch_is_seen_and_kept():
    model, _, outcome, _ = deliver(lambda model: None, stops=True, trained_on=False)
    assert outcome.stop
    assert model.stop_training


def test_setting_the_same_weights_is_no_change():
    assert not deliver(lambda model: model.set_weights(model.get_weights()))[2].rolled_back


def test_a_callback_that_raises_leaves_the_weights_of_its_epoch():
    def fail(model):
        raise RuntimeError("no space left")

    callback = Act(fail)
    with pytest.raises(RuntimeError, match="no space left"):
        deliver(None, callback=callback)
    assert float(callback.model.layers[0].kernel[0, 0]) == 1.0


class Swap(Act):
    """Listens to the validation; may swap the weights for it, as SwapEMAWeights does."""

    def __init__(self, swap):
        super().__init__()
        self.swap = swap
        self.events = []

    def on_test_begin(self, logs=None):
        self.events.append("begin")
        if self.swap:
            self.model.layers[0].kernel.assign([[9.0]])

    def on_test_end(self, logs=None):
        self.events.append(dict(logs))
        if self.swap:
            self.model.layers[0].kernel.assign([[1.0]])


@pytest.mark.parametrize("swap", [False, True])
def test_the_validation_is_replayed_for_those_who_listen_and_made_again_for_other_weights(swap):
    _, callback, outcome, weight = deliver(None, callback=Swap(swap))
    loss = 9.0 if swap else 0.25
    assert callback.events == ["begin", {"loss": loss}]
    assert outcome.logs["val_loss"] == loss
    assert not outcome.rolled_back
    assert weight == 2.0


def test_who_listens_to_batches_finds_the_metrics_as_they_were_after_each():
    """A replay: the logs of a batch and the state of the metrics belong together."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.stop_training = False
    state, heard = ModelState(model), []

    class Listening(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            heard.append(("begin", batch))

        def on_test_batch_end(self, batch, logs=None):
            heard.append((batch, dict(logs), float(state.read_metrics()[0])))

    def running(value):
        values = tuple(tf.fill(v.shape, tf.cast(value, v.dtype)) for v in state.metrics)
        return Running({"loss": float(value)}, values)

    callbacks = keras.callbacks.CallbackList([Listening()], model=model)
    result = ValidationResult({"loss": 2.0}, (running(4), running(2)), running(2).state)
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite(), group=3)
    snapshot = Snapshot(0, 1, state.read())
    delivery.deliver(snapshot, {}, {"": result}, stops=False, trained_on=False)
    first, second = (2, {"loss": 4.0}, 4.0), (5, {"loss": 2.0}, 2.0)
    assert heard == [("begin", 0), first, ("begin", 3), second]


class Listens(keras.callbacks.Callback):
    """Notes the hooks of a validation."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def on_test_begin(self, logs=None):
        self.events.append("begin")

    def on_test_batch_begin(self, batch, logs=None):
        self.events.append(f"batch {batch}")

    def on_test_batch_end(self, batch, logs=None):
        self.events.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.events.append("epoch")


@pytest.mark.parametrize("anew", [False, True])
def test_a_validation_may_be_made_again_until_its_first_batch(anew):
    """Keras traces it with that batch, behind the hooks that come before."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.stop_training = False
    events, state = [], ModelState(model)

    def result(loss):
        running = tuple(SimpleNamespace(logs={"loss": loss}, state=()) for _ in range(2))
        return ValidationResult({"loss": loss}, running)

    def ask(name, most):
        events.append("asked")
        return result(2.0) if anew and events[-2] == "batch 0" else None

    checks = Checks(validate_anew=ask, validated=lambda: events.append("validated"))
    callbacks = keras.callbacks.CallbackList([Listens(events)], model=model)
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite(), checks=checks)
    snapshot = Snapshot(0, 1, state.read())
    outcome = delivery.deliver(snapshot, {}, {"": result(1.0)}, stops=False, trained_on=False)
    loss = 2.0 if anew else 1.0
    hooks = ["begin", "asked", "batch 0", "asked", loss, "batch 1", loss]
    assert events == [*hooks, "validated", "epoch"]
    assert outcome.logs["val_loss"] == loss


def test_a_validation_that_nobody_looks_at_is_over_once_it_is_delivered():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    events, history = [], keras.callbacks.History()
    history.on_train_begin()
    state, checks = ModelState(model), Checks(validated=lambda: events.append("validated"))
    callbacks = keras.callbacks.CallbackList([history], model=model)
    delivery = Delivery(model, state, callbacks, on_change="rollback", suite=Suite(), checks=checks)
    snapshot, results = Snapshot(0, 1, state.read()), {"": ValidationResult({"loss": 0.25})}
    delivery.deliver(snapshot, {}, results, stops=False, trained_on=True)
    assert events == ["validated"]
