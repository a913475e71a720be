"""Evaluation functions beside the training: what they get, when they run, and what may go wrong in them."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy, ValidationSet
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._validation.private_model import make_private_model
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from overlap_train.options.functions import metric_values
from tests.networks import (
    CLASSES,
    FEATURES,
    arrays,
    assert_same_weights,
    crossentropy,
    sequential,
    subclassed,
)

WAIT_S = 60
ROUNDING = dict(rtol=1e-5, atol=2e-5)  # a mean of outputs of both signs cancels
X, Y = arrays(64)
kl = keras.layers


def mean_output(model):
    return float(np.mean(model.predict(X, verbose=0)))


def simple():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    return model


def fit(model, functions, *, epochs=3, callbacks=(), data=None, **policy):
    """Returns the trainer after a fit with evaluation functions and no other validation."""
    policy = {"overlap": "always"} | policy
    trainer = Trainer(model, validation=ValidationPolicy(functions=functions, **policy))
    trainer.fit(
        X, Y, batch_size=16, epochs=epochs, verbose=0, callbacks=list(callbacks), validation_data=data
    )
    return trainer


def expected_values(build, function, epochs=3, data=None):
    """Returns what a callback of Keras's gets from calling the function with its model."""
    found = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(function(self.model))

    build().fit(X, Y, batch_size=16, epochs=epochs, verbose=0, callbacks=[Calls()], validation_data=data)
    return found


def in_step(trainer):
    return [message for message in trainer.messages if "in step" in message]


# What a function gets


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_number_stands_in_the_logs_of_its_epoch(lag):
    trainer = fit(simple(), {"mean": mean_output}, max_lag=lag)
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(simple, mean_output), rtol=1e-6
    )
    assert not in_step(trainer)


def test_a_function_may_evaluate_read_the_optimizer_and_return_nested_values():
    def report(model):
        metrics = model.evaluate(X, Y, verbose=0, return_dict=True)
        return {"again": metrics, "steps": model.optimizer.iterations}

    trainer = fit(sequential(), {"report": report}, max_lag=2)
    history = trainer.model.history.history
    want = [metric_values(value) for value in expected_values(sequential, report)]
    assert history["val_report_steps"] == [4, 8, 12]
    for name in ("again_loss", "again_accuracy"):
        np.testing.assert_allclose(history[f"val_report_{name}"], [w[name] for w in want], rtol=1e-5)


def test_callbacks_may_monitor_a_value(tmp_path):
    values = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    stop = keras.callbacks.EarlyStopping("val_score", mode="min", patience=2, restore_best_weights=True)
    save = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.keras", "val_score", mode="min", save_best_only=True
    )
    trainer = fit(simple(), {"score": lambda model: next(values)}, epochs=6, callbacks=[stop, save])
    assert trainer.ended == "stopped"
    assert trainer.model.history.history["val_score"] == [3.0, 1.0, 2.0, 2.0]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["1", "2"]
    best = keras.saving.load_model(tmp_path / "2.keras")
    np.testing.assert_array_equal(best.get_weights()[0], trainer.model.get_weights()[0])


def test_the_model_is_private_shares_memory_and_is_the_same_object_each_time():
    seen = []

    def look(model):
        seen.append((model, [memoryview(v.value.read_value()) for v in model.trainable_variables]))
        return 0.0

    snapshots = []

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            snapshots.append([v.value.read_value() for v in self.model.trainable_variables])

    trainer = fit(simple(), {"look": look}, callbacks=[Keep()])
    assert len({id(model) for model, _ in seen}) == 1
    assert seen[0][0] is not trainer.model

    def address(buffer):
        return np.asarray(buffer).__array_interface__["data"][0]

    for (_, buffers), values in zip(seen, snapshots, strict=True):
        assert [address(b) for b in buffers] == [address(memoryview(v)) for v in values]


def test_a_copy_disturbs_no_random_state_and_no_name():
    def numbers():
        import random

        state = random.random(), np.random.random(), float(tf.random.uniform(()))
        return state, kl.Dense(1).name, int(keras.random.randint((), 0, 1000))

    keras.utils.set_random_seed(3)
    model = simple()
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    expected = numbers()
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = simple()
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    make_private_model(model, ModelState(model), tf.TensorSpec((None, FEATURES)))
    actual = numbers()
    assert actual[0] == expected[0]
    assert actual[2] == expected[2]


def test_sets_and_functions_stand_together_in_validation_data():
    trainer = Trainer(simple())
    history = trainer.fit(
        X,
        Y,
        epochs=4,
        verbose=0,
        validation_data={
            "clean": (X, Y),
            "odd": EvaluationFunction(mean_output, freq=[1, 4]),
            "often": EvaluationFunction(lambda model: 1),
        },
        validation_freq=2,
    ).history
    assert {name: len(values) for name, values in history.items() if name.startswith("val")} == {
        "val_clean_loss": 2,
        "val_clean_accuracy": 2,
        "val_odd": 2,
        "val_often": 2,
    }


def test_a_function_alone_leaves_validation_split_to_fit():
    trainer = Trainer(simple(), validation=ValidationPolicy(functions={"one": lambda model: 1.0}))
    history = trainer.fit(X, Y, epochs=1, verbose=0, validation_split=0.25).history
    assert {"val_loss", "val_one"} <= set(history)


def test_evaluate_calls_no_function():
    trainer = Trainer(simple(), validation=ValidationPolicy(functions={"bad": lambda model: 1 / 0}))
    assert np.isfinite(trainer.evaluate(X, Y)[0])


def test_functions_are_called_inside_epochs_too():
    steps = []

    class Listens(keras.callbacks.Callback):
        def on_step_validation(self, step, logs):
            steps.append((step, logs["val_mean"]))

    trainer = fit(simple(), {"mean": mean_output}, epochs=2, callbacks=[Listens()], every_steps=2)
    assert [step for step, _ in steps] == [2, 4, 6, 8]
    assert [r.metrics["val_mean"] for r in trainer.step_validations] == [value for _, value in steps]


# When it runs


@pytest.mark.usefixtures("steps_may_wait")
def test_training_goes_on_while_a_function_waits():
    """The function of epoch 1 waits for a step of epoch 2, so that it ends only if that is made meanwhile."""
    later, made, met = threading.Event(), [0], []

    class Counts(Trainer):
        def train_step(self, batch):
            def count():
                made[0] += 1
                if made[0] > 4:
                    later.set()
                return 0

            with tf.control_dependencies([tf.py_function(count, [], tf.int32)]):
                return super().train_step(tf.nest.map_structure(tf.identity, batch))

    def wait(model):
        met.append(later.wait(WAIT_S))
        return 0.0

    policy = ValidationPolicy(functions={"wait": wait}, overlap="always")
    Counts(simple(), validation=policy).fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert met == [True, True]


def test_a_function_is_never_called_twice_at_a_time_and_always_by_one_thread():
    threads, inside, most = [], [0], [0]
    lock = threading.Lock()

    def note(model):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threads.append(threading.current_thread())
        mean_output(model)
        with lock:
            inside[0] -= 1
        return 0.0

    fit(simple(), {"note": note}, epochs=5, max_lag=3)
    assert most[0] == 1
    assert len(set(threads)) == 1
    assert threads[0].name == "validation-note-0"


def test_two_functions_wait_together():
    both = threading.Barrier(2)

    def meet(model):
        both.wait(WAIT_S)
        return 1.0

    trainer = fit(simple(), {"a": meet, "b": meet}, epochs=2)
    assert trainer.model.history.history["val_a"] == [1.0, 1.0]


def test_a_snapshot_is_released_when_its_function_has_returned():
    alive, counts = weakref.WeakSet(), []
    original = Snapshot.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        alive.add(self)

    class Looks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            gc.collect()
            counts.append(len(alive))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "__init__", remember)
        fit(simple(), {"mean": mean_output}, epochs=4, callbacks=[Looks()])
    assert max(counts) <= 2


# What goes wrong in it


@pytest.mark.parametrize(
    "error", [ValueError("a bad day"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_what_a_function_raises_ends_the_fit(error):
    def fail(model):
        raise error

    with pytest.raises(ValidationWorkerError, match="'score'") as caught:
        fit(simple(), {"score": fail})
    assert caught.value.__cause__ is error
    assert caught.value.epoch == 0


def test_on_error_warn_leaves_the_value_out():
    def sometimes(model):
        if int(model.optimizer.iterations) == 8:
            raise RuntimeError("not now")
        return float(model.optimizer.iterations)

    with pytest.warns(RuntimeWarning, match="not now"):
        trainer = fit(simple(), {"score": sometimes}, on_error="warn")
    assert trainer.model.history.history["val_score"] == [4.0, 12.0]


def test_on_error_retry_calls_it_again_with_the_same_snapshot():
    calls = []

    def second_time(model):
        calls.append(int(model.optimizer.iterations))
        if len(calls) == 1:
            raise RuntimeError("once")
        return 1.0

    fit(simple(), {"score": second_time}, epochs=1, on_error="retry")
    assert calls == [4, 4]


@pytest.mark.parametrize(
    "value",
    [None, "0.5", [0.5], np.zeros(2), 1j, {"a": None}, {1: 2.0}, {"": 1.0}, {"a": {"b": [1]}}, int],
    ids=repr,
)
def test_nonsense_is_an_error_that_says_what_is_expected(value):
    with pytest.raises(ValidationWorkerError, match=r"evaluation function (returns|names)"):
        fit(simple(), {"score": lambda model: value}, epochs=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), {"": 0.5}),
        (np.array(2), {"": 2.0}),
        (True, {"": 1.0}),
        (float("nan"), {"": float("nan")}),
        (tf.constant(0.25, tf.bfloat16), {"": 0.25}),
        ({"a": {"b": 1, "c": {"d": 2}}, "e": 3}, {"a_b": 1.0, "a_c_d": 2.0, "e": 3.0}),
        ({}, {}),
    ],
)
def test_numbers_of_all_kinds_are_taken(value, expected):
    np.testing.assert_equal(metric_values(value), expected)


def test_two_values_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'a_b'"):
        metric_values({"a_b": 1.0, "a": {"b": 2.0}})
    with pytest.raises(ValueError, match="'val_loss'"):
        fit(simple(), {"loss": lambda model: 1.0}, data=(X, Y))


@pytest.mark.filterwarnings("ignore:.*did not end within")
def test_a_function_that_hangs_ends_in_a_timeout(monkeypatch):
    from overlap_train._validation import pool

    monkeypatch.setattr(pool, "_CLOSE_S", 0.2)
    monkeypatch.setattr(pool.WorkerPool.close, "__defaults__", (0.2,))
    go_on = threading.Event()
    try:
        with pytest.raises(ValidationTimeoutError, match="epoch 1"):
            fit(simple(), {"hang": lambda model: go_on.wait(WAIT_S)}, timeout_s=0.2)
    finally:
        go_on.set()


def test_what_a_function_changes_in_its_model_is_said_and_reaches_nothing_else():
    def change(model):
        model.layers[-1].kernel.assign(tf.zeros_like(model.layers[-1].kernel))
        model.fit(X, Y, verbose=0)
        return mean_output(model)

    trainer = fit(simple(), {"change": change})
    plain = simple()
    plain.fit(X, Y, batch_size=16, epochs=3, verbose=0)
    assert_same_weights(trainer.model, plain)
    (said,) = [message for message in trainer.messages if "changed its model" in message]
    assert "kernel" in said


def test_a_fork_that_comes_back_is_ended(capfd):
    def fork(model):
        child = os.fork()
        if not child:
            return 0.0
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    trainer = fit(simple(), {"fork": fork}, epochs=1)
    assert trainer.model.history.history["val_fork"] == [1]
    assert "a forked process returned" in capfd.readouterr().err


# Models that are hard to copy


class Configured(keras.Model):
    """A subclassed model that its configuration makes again, but for what is set later."""

    def __init__(self, units, **arguments):
        super().__init__(**arguments)
        self.units, self.temperature = units, 1.0
        self.hidden, self.head = kl.Dense(units, activation=squash), kl.Dense(CLASSES)

    def call(self, x, training=False):
        return self.head(self.hidden(x)) / self.temperature

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def squash(x):
    return keras.ops.tanh(x)


def configured():
    keras.utils.set_random_seed(5)
    model = Configured(6)
    model.temperature, model.tokenizer = 3.0, object()
    model.compile("adam", lambda y, p: crossentropy()(y, p), metrics=["accuracy"])
    return model


def adapted():
    keras.utils.set_random_seed(5)
    norm = kl.Normalization()
    norm.adapt(X)
    model = keras.Sequential([keras.Input((FEATURES,)), norm, kl.BatchNormalization(), kl.Dense(CLASSES)])
    model.compile("adam", crossentropy())
    return model


def with_vocabulary():
    keras.utils.set_random_seed(5)
    lookup = kl.IntegerLookup()
    lookup.adapt(np.array([[3, 1, 1], [0, 3, 3]]))
    inputs = keras.Input((FEATURES,))
    words = lookup(keras.ops.cast(inputs, "int64"))
    outputs = kl.Dense(CLASSES)(kl.Flatten()(kl.Embedding(8, 2)(words)))
    model = keras.Model(inputs, outputs)
    model.compile("adam", crossentropy())
    return model


@pytest.mark.parametrize("build", [configured, adapted, with_vocabulary, sequential])
def test_what_is_set_or_adapted_later_is_part_of_the_copy(build):
    trainer = fit(build(), {"mean": mean_output}, max_lag=2)
    assert not in_step(trainer)
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(build, mean_output), **ROUNDING
    )


def test_an_object_attached_to_the_model_is_found_on_the_copy():
    model = configured()
    trainer = fit(model, {"same": lambda copy: copy.tokenizer is model.tokenizer and copy is not model})
    assert trainer.model.history.history["val_same"] == [1.0, 1.0, 1.0]


def reads_live_weights():
    """A layer's function reads the variables of another layer, past every configuration."""
    keras.utils.set_random_seed(5)
    first = kl.Dense(FEATURES)
    first.build((None, FEATURES))

    def tied(x):
        return keras.ops.matmul(x, keras.ops.transpose(first.kernel))

    inputs = keras.Input((FEATURES,))
    model = keras.Model(inputs, kl.Dense(CLASSES)(kl.Activation(tied)(first(inputs))))
    model.compile("sgd", crossentropy())
    return model


class Listed(Configured):
    """Computes with what its configuration does not hold."""

    def __init__(self, units, **arguments):
        super().__init__(units, **arguments)
        self.scales = [1.0]

    def call(self, x, training=False):
        return super().call(x) * self.scales[0]


def listed():
    keras.utils.set_random_seed(5)
    model = Listed(6)
    model.scales[0] = 2.0
    model.compile("adam", crossentropy())
    return model


def with_closure():
    from tests.real_code import closure_loss

    return closure_loss()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (subclassed, "is not made anew by its configuration"),
        (reads_live_weights, "outside the model"),
        (listed, "computes something else"),
        (with_closure, "outside the model"),
    ],
)
def test_a_model_without_a_faithful_copy_is_evaluated_in_step_and_says_why(build, reason):
    seen = []

    def mean(model):
        seen.append(model)
        return mean_output(model)

    trainer = fit(build(), {"mean": mean}, max_lag=2)
    assert all(model is trainer.model for model in seen)
    (said,) = in_step(trainer)
    assert reason in said
    assert "clone=" in said
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(build, mean_output), **ROUNDING
    )


def test_clone_makes_the_copy_of_such_a_model():
    function = EvaluationFunction(mean_output, clone=lambda: type(subclassed())())
    trainer = fit(subclassed(), {"mean": function}, max_lag=2)
    assert not in_step(trainer)
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(subclassed, mean_output), **ROUNDING
    )


@pytest.mark.parametrize(
    ("clone", "error", "message"),
    [
        (lambda: None, TypeError, "clone must return a Keras model"),
        (lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Dense(2)]), ValueError, "where the model"),
        (lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Flatten()]), ValueError, "0 variables"),
        (
            lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES, "relu")]),
            ValueError,
            "something else",
        ),
    ],
)
def test_a_clone_that_is_none_is_refused_before_anything_starts(clone, error, message):
    with pytest.raises(error, match=message):
        fit(simple(), {"mean": EvaluationFunction(mean_output, clone=clone)})


def test_the_trained_model_is_no_clone_of_itself():
    model = simple()
    with pytest.raises(ValueError, match="the one that is trained"):
        fit(model, {"mean": EvaluationFunction(mean_output, clone=lambda: model)})


def test_a_function_in_step_may_change_the_training_as_a_callback_may():
    def halve(model):
        model.optimizer.learning_rate.assign(model.optimizer.learning_rate / 2)
        return float(model.optimizer.learning_rate)

    trainer = fit(subclassed(), {"rate": halve})
    np.testing.assert_allclose(
        trainer.model.history.history["val_rate"], expected_values(subclassed, halve), rtol=1e-6
    )


# Together with the rest of a fit


def test_a_rollback_calls_it_again_for_the_epochs_that_are_trained_again():
    calls = []

    def note(model):
        calls.append(int(model.optimizer.iterations))
        return 1.0

    plateau = keras.callbacks.ReduceLROnPlateau("val_note", mode="min", patience=1, factor=0.5)
    trainer = fit(simple(), {"note": note}, epochs=4, max_lag=1, callbacks=[plateau])
    assert sorted(set(calls)) == [4, 8, 12, 16]
    assert len(trainer.model.history.history["val_note"]) == 4
    assert any("back to the end of epoch" in message for message in trainer.messages)


def test_weights_that_a_test_hook_sets_are_those_that_are_evaluated():
    def swap():
        return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    def build():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), crossentropy())
        return model

    found = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(mean_output(self.model))

    build().fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=[Calls(), swap()])
    trainer = fit(build(), {"mean": mean_output}, data=(X, Y), callbacks=[swap()])
    np.testing.assert_allclose(trainer.model.history.history["val_mean"], found, rtol=1e-5)


def test_a_resumed_training_has_the_values_of_an_unbroken_one(tmp_path):
    policy = ValidationPolicy(functions={"mean": mean_output})
    whole = Trainer(simple(), validation=policy).fit(X, Y, epochs=4, verbose=0, resume=tmp_path / "a")
    Trainer(simple(), validation=policy).fit(X, Y, epochs=2, verbose=0, resume=tmp_path / "b")
    resumed = Trainer(simple(), validation=policy).fit(X, Y, epochs=4, verbose=0, resume=tmp_path / "b")
    np.testing.assert_allclose(resumed.history["val_mean"], whole.history["val_mean"], rtol=1e-6)


def test_backlog_skip_leaves_functions_out_too():
    go_on = threading.Event()

    class Opens(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                go_on.set()

    def wait(model):
        go_on.wait(WAIT_S)
        return float(model.optimizer.iterations)

    trainer = fit(simple(), {"at": wait}, epochs=5, backlog="skip", on_change="continue", callbacks=[Opens()])
    assert trainer.model.history.history["val_at"][0] == 4.0
    assert trainer.model.history.history["val_at"][-1] == 20.0
    assert any(account.skipped for account in trainer.accounts)


# Arguments


@pytest.mark.parametrize(
    ("functions", "error", "message"),
    [
        ([mean_output], TypeError, "functions must be a mapping"),
        ({1: mean_output}, TypeError, "functions must be a mapping of names"),
        ({"": mean_output}, ValueError, "empty"),
        ({"a": 3}, TypeError, r"functions\['a'\] must be a function"),
        ({"a": keras.Model}, TypeError, r"functions\['a'\] must be a function"),
    ],
)
def test_bad_functions_are_refused_by_name(functions, error, message):
    with pytest.raises(error, match=message):
        ValidationPolicy(functions=functions)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (EvaluationFunction(mean_output), TypeError, "without a name"),
        ({"f": EvaluationFunction(mean_output), "x": X}, TypeError, r"validation_data\['x'\]"),
        ({"mean": EvaluationFunction(mean_output)}, ValueError, "both name 'mean'"),
        ({"mean": (X, Y)}, ValueError, "both name 'mean'"),
        ({"": EvaluationFunction(mean_output)}, ValueError, "empty"),
    ],
)
def test_bad_sets_beside_functions_are_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        fit(simple(), {"mean": mean_output}, data=data)


def test_a_validation_set_object_may_stand_beside_a_function():
    data = {"a": ValidationSet(data=(X, Y)), "f": EvaluationFunction(mean_output)}
    trainer = fit(simple(), None, data=data, epochs=1)
    assert {"val_a_loss", "val_f"} <= set(trainer.model.history.history)


# A process


def from_a_process(model):
    return {"pid": os.getpid(), "mean": mean_output(model)}


def says_no(model):
    raise ArithmeticError(f"no in {os.getpid()}")


def dies_once(model):
    if not os.path.exists(os.environ["DIED"]):
        open(os.environ["DIED"], "w").close()
        os._exit(7)
    return 1.0


def sleeps(model):
    time.sleep(WAIT_S)


def make_subclassed():
    return type(subclassed())()


def in_process(function, **arguments):
    return {"f": EvaluationFunction(function, backend="process", **arguments)}


def test_a_process_gives_the_same_values():
    history = fit(simple(), in_process(from_a_process), max_lag=2).model.history.history
    np.testing.assert_allclose(history["val_f_mean"], expected_values(simple, mean_output), rtol=1e-5)
    assert len(set(history["val_f_pid"])) == 1
    assert history["val_f_pid"][0] != os.getpid()


def test_a_process_makes_a_subclassed_model_by_clone():
    functions = in_process(mean_output, clone=make_subclassed)
    history = fit(subclassed(), functions).model.history.history
    np.testing.assert_allclose(history["val_f"], expected_values(subclassed, mean_output), **ROUNDING)


def test_what_is_raised_in_a_process_reaches_fit_with_its_traceback():
    with pytest.raises(ValidationWorkerError, match="no in") as caught:
        fit(simple(), in_process(says_no))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert "says_no" in str(caught.value.__cause__.__cause__)


@pytest.mark.nightly  # under load its process may end before it says why
def test_a_process_that_dies_is_an_error_and_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    with pytest.warns(RuntimeWarning, match="exit code 7"):
        trainer = fit(simple(), in_process(dies_once), epochs=2, on_error="warn")
    assert trainer.model.history.history["val_f"] == [1.0]


def test_a_process_that_hangs_is_ended_with_the_fit():
    before = time.monotonic()
    with pytest.raises(ValidationTimeoutError):
        fit(simple(), in_process(sleeps), timeout_s=0.2)
    assert time.monotonic() - before < WAIT_S / 2


def test_a_function_that_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="importable by name"):
        fit(simple(), in_process(lambda model: 0.0))
