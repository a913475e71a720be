"""Callbacks' state: a callback that is put back goes on as if nothing had happened since."""

from __future__ import annotations

import collections
import math
import weakref
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.packing import pack, unpack
from overlap_train._callbacks.rewind import files_of, mark_files, rewind_files
from overlap_train._callbacks.state import (
    CallbackState,
    capture,
    capture_all,
    check_all,
    restore,
    restore_all,
)
from overlap_train._checkpoint import container
from overlap_train._checkpoint.state import CheckpointState
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError

LOSSES = [5.0, 4.0, 4.5, 3.0, 3.5, 3.6, 3.7, 3.8, 3.9, 4.0]


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.5), "mse")
    return made


def through_disk(states, path: Path):
    """Sends states through a checkpoint file."""
    arrays, described = pack(states)
    path.write_bytes(b"".join(container.encode(CheckpointState(0, 0, arrays, {"callbacks": described}))))
    loaded = container.read(path)
    return unpack(loaded.arrays, loaded.meta["callbacks"])


def begin(callback, model):
    callback.set_model(model)
    callback.set_params({"epochs": len(LOSSES), "steps": 1, "verbose": 0})
    model.stop_training = False
    callback.on_train_begin()


def run(callback, model, first: int, last: int, **logs) -> int:
    """Calls the hooks of epochs of four batches; returns the first epoch that was not run."""
    for epoch in range(first, last):
        callback.on_epoch_begin(epoch)
        for batch in range(4):
            callback.on_train_batch_begin(batch)
            callback.on_train_batch_end(batch, {"loss": LOSSES[epoch]})
        model.layers[0].bias.assign([float(epoch)])
        callback.on_epoch_end(epoch, {"loss": LOSSES[epoch], "val_loss": LOSSES[epoch] + 1, **logs})
        if model.stop_training:
            return epoch + 1
    return last


def remembered(callback):
    return repr(sorted(capture(callback).values.items()))


# Keras's own callbacks, killed after some epochs and resumed in a new object.

STOCK = {
    "early stopping": lambda d: keras.callbacks.EarlyStopping(
        patience=2, restore_best_weights=True, min_delta=0.1
    ),
    "early stopping with start": lambda d: keras.callbacks.EarlyStopping(
        monitor="loss", patience=3, start_from_epoch=2, baseline=4.2
    ),
    "plateau": lambda d: keras.callbacks.ReduceLROnPlateau(patience=1, cooldown=1, min_delta=0.05),
    "checkpoint of the best": lambda d: keras.callbacks.ModelCheckpoint(
        d / "{epoch}.weights.h5", save_best_only=True, save_weights_only=True
    ),
    "checkpoint by batches": lambda d: keras.callbacks.ModelCheckpoint(
        d / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3
    ),
    "history": lambda d: keras.callbacks.History(),
    "csv": lambda d: keras.callbacks.CSVLogger(d / "log.csv"),
    "csv that appends": lambda d: keras.callbacks.CSVLogger(d / "log.csv", separator=";", append=True),
    "schedule": lambda d: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    "lambda": lambda d: keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None, note=[1]),
    "nan": lambda d: keras.callbacks.TerminateOnNaN(),
    "remote": lambda d: keras.callbacks.RemoteMonitor(headers={"a": "b"}),
    "backup": lambda d: keras.callbacks.BackupAndRestore(d / "backup", save_freq=3, delete_checkpoint=False),
    "ema": lambda d: keras.callbacks.SwapEMAWeights(),
}


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("killed_after", [1, 4, 5])
def test_stock_callback_resumes_as_if_unbroken(tmp_path, model, name, killed_after, monkeypatch):
    monkeypatch.setattr(keras.callbacks.RemoteMonitor, "on_epoch_end", lambda self, epoch, logs: None)

    def unbroken(folder):
        folder.mkdir()
        callback = STOCK[name](folder)
        begin(callback, model)
        return callback, run(callback, model, 0, len(LOSSES)), float(model.optimizer.learning_rate)

    initial, rate = model.get_weights(), 0.5
    expected, expected_end, expected_rate = unbroken(tmp_path / "unbroken")
    model.set_weights(initial)
    model.optimizer.learning_rate = rate

    folder = tmp_path / "broken"
    folder.mkdir()
    killed = STOCK[name](folder)
    begin(killed, model)
    run(killed, model, 0, killed_after)
    saved, weights, rate = capture(killed), model.get_weights(), float(model.optimizer.learning_rate)
    marks = mark_files(files_of([killed]))
    run(killed, model, killed_after, killed_after + 1)  # what the kill undoes
    model.optimizer.learning_rate = rate

    resumed = STOCK[name](folder)
    (state,) = through_disk([saved], tmp_path / "state")
    check_all([resumed], [state])
    rewind_files([resumed], marks, killed_after)
    begin(resumed, model)
    model.set_weights(weights)
    restore(resumed, state)
    end = run(resumed, model, killed_after, len(LOSSES))
    assert end == expected_end
    assert float(model.optimizer.learning_rate) == expected_rate
    for callback in (killed, resumed, expected):
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.on_train_end()
    assert remembered(resumed) == remembered(expected)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    of_unbroken = tmp_path / "unbroken"
    assert files == sorted(p.relative_to(of_unbroken) for p in of_unbroken.rglob("*") if p.is_file())
    for text in folder.glob("*.csv"):
        assert text.read_bytes() == (of_unbroken / text.name).read_bytes()


@pytest.mark.parametrize("name", STOCK)
def test_nothing_of_a_stock_callback_is_lost_silently(tmp_path, model, name):
    callback = STOCK[name](tmp_path)
    begin(callback, model)
    if name != "remote":
        run(callback, model, 0, 3)
    assert capture(callback).left_out == ()
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.on_train_end()


def test_tensorboard_keeps_counters_and_leaves_writers(tmp_path, model):
    callback = keras.callbacks.TensorBoard(tmp_path, update_freq=2, write_graph=False)
    begin(callback, model)
    callback.on_train_batch_begin(0)
    state = capture(callback)
    assert state.values == {
        "_global_train_batch": 1,
        "_global_test_batch": 0,
        "_should_write_train_graph": False,
    }
    callback.on_train_batch_begin(1)
    writers = callback._writers
    restore(callback, state)
    assert callback._global_train_batch == 1
    assert callback._writers is writers
    callback.on_train_end()


def test_new_settings_win_over_those_of_the_killed_run(model):
    old, new = keras.callbacks.EarlyStopping(patience=1), keras.callbacks.EarlyStopping(patience=9)
    begin(old, model)
    run(old, model, 0, 3)
    begin(new, model)
    restore(new, capture(old))
    assert (new.patience, new.wait, new.best, new.best_epoch) == (9, 1, 5.0, 1)


def test_min_delta_does_not_change_its_sign_twice(model):
    old, new = (keras.callbacks.EarlyStopping(min_delta=0.1) for _ in range(2))
    begin(old, model)
    run(old, model, 0, 2)
    begin(new, model)
    restore(new, capture(old))
    run(new, model, 2, 3)
    assert new.min_delta == old.min_delta == -0.1


def test_best_weights_are_shared_and_not_copied(model):
    callback = keras.callbacks.EarlyStopping(restore_best_weights=True)
    begin(callback, model)
    run(callback, model, 0, 1)
    assert capture(callback).values["best_weights"][0] is callback.best_weights[0]


# A user's callbacks.


class Recorder(keras.callbacks.Callback):
    """Remembers something of every kind."""

    def __init__(self, shared=None):
        super().__init__()
        self.shared = [] if shared is None else shared
        self.numbers = {"a": [1, 2.5, math.inf], 3: (None, True), (1, "b"): 2**70}
        self.array = np.arange(3.0)
        self.low = np.array([1, 2], ml_dtypes.bfloat16)
        self.scalar = np.float32(0.5)
        self.wide = np.float64(0.25)
        self.tensor = tf.constant([1, 2])
        self.variable = keras.Variable([1.0, 2.0])
        self.plain_variable = tf.Variable(3)
        self.window = collections.deque([1, 2], maxlen=2)
        self.seen = {1, 2}
        self.raw, self.root = b"\x00\xff", 1 + 2j
        self.function = print
        self.others = [object()]


def spoil(callback):
    callback.shared.append(1)
    callback.numbers["a"].append(9)
    callback.numbers["new"] = 0
    callback.array += 1
    callback.low[0] = 7
    callback.scalar, callback.wide, callback.raw, callback.root = None, None, b"", 0
    callback.tensor += 1
    callback.variable.assign([8.0, 8.0])
    callback.plain_variable.assign(8)
    callback.window.append(3)
    callback.seen.add(3)


def test_every_kind_of_value_comes_back(tmp_path):
    callback = Recorder()
    before, variable = remembered(callback), callback.variable
    state = capture(callback)
    assert state.left_out == ("function", "others")
    for source in (state, through_disk([state], tmp_path / "f")[0], state):
        spoil(callback)
        restore(callback, source)
        assert remembered(callback) == before
        assert callback.variable is variable
        assert type(callback.wide) is np.float64
        assert callback.window.maxlen == 2
        assert callback.low.dtype == ml_dtypes.bfloat16


def test_list_shared_with_the_user_stays_shared(tmp_path):
    shared: list[int] = [1]
    callback = Recorder(shared)
    state = capture(callback)
    for source in (state, *through_disk([state], tmp_path / "f")):
        callback.shared.append(2)
        restore(callback, source)
        assert shared == [1]
        assert callback.shared is shared


def test_logs_that_the_trainer_keeps_are_not_touched():
    callback = Recorder()
    callback.logs = {"loss": 1.0}
    state = capture(callback)
    kept_by_trainer = callback.logs = {"loss": 2.0}
    restore(callback, state)
    assert kept_by_trainer == {"loss": 2.0}
    assert callback.logs == {"loss": 1.0}


def test_two_names_that_came_to_hold_one_list_part_again():
    callback = Recorder()
    callback.best, callback.last = [1], [2]
    state = capture(callback)
    callback.best = callback.last
    restore(callback, state)
    assert (callback.best, callback.last) == ([1], [2])


def test_attributes_that_came_later_are_removed_by_a_rollback_only(tmp_path):
    callback = Recorder()
    state = capture(callback)
    callback.later = 1
    restore(callback, *through_disk([state], tmp_path / "f"))
    assert callback.later == 1
    restore(callback, state)
    assert not hasattr(callback, "later")
    assert callback.function is print


def test_resource_opened_since_is_left_open(tmp_path):
    callback = Recorder()
    callback.file = None
    state = capture(callback)
    with open(tmp_path / "f", "w") as callback.file:
        restore(callback, state)
        assert not callback.file.closed


def test_variables_of_the_model_belong_to_the_snapshot(model):
    callback = Recorder()
    callback.set_model(model)
    callback.rate, callback.weights = model.optimizer.learning_rate, model.trainable_variables
    state = capture(callback)
    assert {"rate", "weights"} <= set(state.left_out)
    model.optimizer.learning_rate = 0.125
    restore(callback, state)
    assert float(model.optimizer.learning_rate) == 0.125


def test_variable_of_another_shape_is_refused(tmp_path):
    (state,) = through_disk([capture(Recorder())], tmp_path / "f")
    callback = Recorder()
    for other, message in [(keras.Variable([1.0]), r"one of \(1,\) float32"), (3, "of type int")]:
        callback.variable = other
        with pytest.raises(
            CheckpointMismatchError, match=rf"Recorder.variable cannot be restored.*{message}"
        ):
            restore(callback, state)


def test_container_that_holds_itself_is_left_out():
    callback = Recorder()
    callback.loop = []
    callback.loop.append(callback.loop)
    assert "loop" in capture(callback).left_out


def test_subclass_of_a_stock_callback_keeps_both(tmp_path, model):
    class Mine(keras.callbacks.EarlyStopping):
        mine = 0

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.mine += 1

    old, new = Mine(patience=5), Mine(patience=5)
    begin(old, model)
    run(old, model, 0, 3)
    begin(new, model)
    restore(new, *through_disk([capture(old)], tmp_path / "f"))
    assert (new.mine, new.wait, new.best) == (3, 1, 5.0)
    assert new.monitor_op is None


class Spoken(keras.callbacks.ReduceLROnPlateau):
    """Says itself what it remembers."""

    def __init__(self, returned=None):
        super().__init__()
        self.secret, self.ignored, self.returned = 0, 0, returned

    def get_state(self):
        return self.returned or {"secret": self.secret, "array": np.ones(2)}

    def set_state(self, state):
        self.secret = state["secret"]
        state["array"][:] = 0


def test_get_state_replaces_the_users_attributes_and_not_those_of_keras(tmp_path):
    old, new = Spoken(), Spoken()
    old.secret, old.ignored, old.wait = 3, 4, 5
    state = capture(old)
    for source in (state, state, *through_disk([state], tmp_path / "f")):
        restore(new, source)
        assert (new.secret, new.ignored, new.wait) == (3, 0, 5)
    assert state.values["get_state()"]["array"].tolist() == [1, 1]


def test_get_state_of_something_else_is_refused():
    with pytest.raises(TypeError, match=r"Spoken.get_state\(\) returned a object"):
        capture(Spoken({"x": object()}))


# Lists of callbacks.


def test_other_callbacks_are_refused_before_any_is_changed():
    early, plateau = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
    early.wait = 3
    states = capture_all([early, keras.callbacks.ProgbarLogger(), plateau])
    assert [state.kind for state in states] == ["EarlyStopping", "ReduceLROnPlateau"]
    early.wait = 7
    for now, message in [
        ([early], "Callback 1 was ReduceLROnPlateau when the checkpoint was written, and is absent now"),
        ([early, keras.callbacks.History()], "Callback 1 was ReduceLROnPlateau .* and is History now"),
        ([early, plateau, plateau], "Callback 2 was absent"),
    ]:
        with pytest.raises(CheckpointMismatchError, match=message):
            restore_all(now, states)
        assert early.wait == 7
    restore_all([keras.callbacks.ProgbarLogger(), early, plateau], states)
    assert early.wait == 3
    with pytest.raises(CheckpointMismatchError, match="state is that of a EarlyStopping"):
        restore(plateau, states[0])


def test_state_holds_neither_callback_nor_model(model):
    callback = keras.callbacks.EarlyStopping()
    begin(callback, model)
    state, reference = capture(callback), weakref.ref(callback)
    del callback
    assert reference() is None
    assert state.kind == "EarlyStopping"


# States made by hand.


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (keras.callbacks.EarlyStopping, {"wait": "three"}),
        (keras.callbacks.EarlyStopping, {"wait": True}),
        (keras.callbacks.EarlyStopping, {"best": [1.0]}),
        (keras.callbacks.EarlyStopping, {"best_weights": [np.zeros(3)]}),
        (keras.callbacks.EarlyStopping, {"best_weights": np.zeros(3)}),
        (keras.callbacks.EarlyStopping, {"monitor": "loss"}),
        (keras.callbacks.EarlyStopping, {"_model": None}),
        (keras.callbacks.EarlyStopping, {"on_epoch_end": 5}),
        (keras.callbacks.EarlyStopping, {"__class__": 5}),
        (keras.callbacks.EarlyStopping, {"model": 5}),
        (keras.callbacks.History, {"history": 5}),
        (keras.callbacks.History, {"history": {"loss": 5}}),
        (keras.callbacks.History, {"epoch": ["one"]}),
        (lambda: keras.callbacks.CSVLogger("log"), {"append": 1}),
        (lambda: keras.callbacks.CSVLogger("log"), {"keys": [1]}),
    ],
)
def test_a_value_that_no_callback_of_the_class_remembers_is_refused(model, make, values):
    early, callback = keras.callbacks.EarlyStopping(), make()
    early.wait = 1
    callback.set_model(model)
    good = CallbackState("EarlyStopping", {"wait": 2}, from_disk=True)
    bad = CallbackState(type(callback).__name__, values, from_disk=True)
    before = dict(vars(callback))
    with pytest.raises(CheckpointCorruptError, match=next(iter(values))):
        restore_all([early, callback], [good, bad])
    assert early.wait == 1
    assert vars(callback) == before


def test_no_callback_is_changed_if_a_variable_of_a_later_one_does_not_fit(model):
    class Average(keras.callbacks.Callback):
        def __init__(self, size):
            super().__init__()
            self.averages = [keras.Variable(np.zeros(size, "float32"))]

    states = capture_all([keras.callbacks.EarlyStopping(), Average(2)])
    early = keras.callbacks.EarlyStopping()
    early.wait = 7
    with pytest.raises(CheckpointMismatchError, match=r"Average\.averages cannot be restored"):
        restore_all([early, Average(3)], states)
    assert early.wait == 7
