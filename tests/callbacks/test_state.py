"""Callbacks' state: a callback that is put back goes on as if nothing had happened since."""

import threading
import weakref

import keras
import numpy as np
import pytest

from overlap_train import EpochOnly
from overlap_train._callbacks.rewind import append_to_files, files_of, mark_files, rewind_files
from overlap_train._callbacks.state import Settings, Unstored, capture_all, restore_all
from tests.callbacks.hooks import LOSSES, begin, capture, remembered, restore, run, through_disk

# A user's callbacks.


def test_variables_of_the_model_belong_to_the_snapshot(model):
    callback = Holder(rate=model.optimizer.learning_rate, weights=model.trainable_variables)
    callback.set_model(model)
    state = capture(callback)
    assert not {"rate", "weights"} & {*state.attributes, *state.lost}
    model.optimizer.learning_rate = 0.125
    restore(callback, state)
    assert float(model.optimizer.learning_rate) == 0.125


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
        self.secret = float(state["secret"])
        state["array"][:] = 0


def test_get_state_replaces_the_users_attributes_and_not_those_of_keras(tmp_path):
    old, new = Spoken(), Spoken()
    old.secret, old.ignored, old.wait = 3, 4, 5
    state = capture(old)
    for source in (state, state, *through_disk([state], tmp_path / "f")):
        restore(new, source)
        assert (new.secret, new.ignored, new.wait) == (3, 0, 5)
    assert state.attributes["get_state()"]["dict"][1][1]["array"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "kind"),
    [(object(), "object"), (keras.metrics.Mean(), "Mean"), ([keras.metrics.Mean()], "Mean")],
)
def test_get_state_of_something_else_is_refused(value, kind):
    with pytest.raises(TypeError, match=rf"Spoken.get_state\(\) returned a {kind}"):
        capture(Spoken({"x": value}))


# Lists of callbacks.


class Holder(keras.callbacks.Callback):
    """Keeps what it is given."""

    def __init__(self, **parts):
        super().__init__()
        vars(self).update(parts)


def test_a_callback_inside_another_is_kept_and_one_of_the_fit_is_kept_once(tmp_path):
    def made(wait):
        early, inner = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
        early.wait = inner.wait = wait
        return [early, Holder(other=early, n=wait), EpochOnly(inner)]

    states = capture_all(made(3))
    assert [*states[1].attributes] == ["n"]
    assert [state.lost for state in states] == [(), (), ()]
    early, holder, wrapped = others = made(0)
    found = through_disk(states, tmp_path / "f")
    assert restore_all([*zip(others, found, strict=True)]) == ()
    assert (early.wait, holder.n, wrapped.callback.wait) == (3, 3, 3)


def test_state_holds_neither_callback_nor_model(model):
    callback = keras.callbacks.EarlyStopping()
    begin(callback, model)
    state, reference = capture(callback), weakref.ref(callback)
    del callback
    assert reference() is None
    assert state.kind == "EarlyStopping"


# What no checkpoint holds.


class Tracker:
    def __init__(self):
        self.n = 0


def changed(part):
    part.n = 5
    return part


# What a callback holds as a training begins, what it holds then, and whether that is named.
UNSTORED = {
    "a thread": (threading.Thread(), lambda part: part, True),
    "a thread that came later": (None, lambda part: threading.Thread(), True),
    "an object that came later": (None, lambda part: Tracker(), True),
    "an object that has changed": (Tracker(), changed, True),
    "a metric anew": (keras.metrics.Mean(), lambda part: keras.metrics.Mean(), False),
    "another function": (print, lambda part: len, True),
    "the same function": (print, lambda part: print, False),
    "a function that came later": (None, lambda part: print, False),
    "a lock": (threading.Lock(), lambda part: threading.Lock(), False),
    "plain values": ([], lambda part: {"a": [1]}, False),
}


@pytest.mark.parametrize(("part", "change", "named"), UNSTORED.values(), ids=UNSTORED)
def test_what_no_checkpoint_holds_is_named_once_if_it_may_have_changed(part, change, named):
    callback, unstored = Holder(part=part), Unstored()
    unstored.begin([callback])
    callback.part = change(callback.part)
    states = capture_all([callback])
    assert unstored.names(states, [callback]) == (["Holder.part"] if named else [])
    assert unstored.names(states, [callback]) == []


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
    "csv": lambda d: EpochOnly(keras.callbacks.CSVLogger(d / "log.csv")),
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
@pytest.mark.by_default("1-checkpoint of the best", "1-checkpoint by batches")
def test_stock_callback_resumes_as_if_unbroken(tmp_path, model, name, killed_after, monkeypatch):
    monkeypatch.setattr(keras.callbacks.RemoteMonitor, "on_epoch_end", lambda self, epoch, logs: None)

    of_unbroken, folder, initial = tmp_path / "unbroken", tmp_path / "broken", model.get_weights()
    of_unbroken.mkdir(), folder.mkdir()
    expected = STOCK[name](of_unbroken)
    begin(expected, model)
    expected_end = run(expected, model, 0, len(LOSSES))
    expected_rate = float(model.optimizer.learning_rate)
    model.set_weights(initial)
    model.optimizer.learning_rate = 0.5

    killed = STOCK[name](folder)
    begin(killed, model)
    run(killed, model, 0, killed_after)
    saved, weights, rate = capture(killed), model.get_weights(), float(model.optimizer.learning_rate)
    assert saved.lost == ()
    marks = mark_files(files_of([killed]))
    run(killed, model, killed_after, killed_after + 1)  # what the kill undoes
    model.optimizer.learning_rate = rate

    resumed = STOCK[name](folder)
    (state,) = through_disk([saved], tmp_path / "state")
    append_to_files([resumed])
    begin(resumed, model)
    model.set_weights(weights)
    restore(resumed, state)
    rewind_files([resumed], marks, killed_after)
    end = run(resumed, model, killed_after, len(LOSSES))
    assert end == expected_end
    assert float(model.optimizer.learning_rate) == expected_rate
    for callback in (killed, resumed, expected):
        if name.startswith("csv"):
            callback.on_train_end()
    assert remembered(resumed) == remembered(expected)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(of_unbroken) for p in of_unbroken.rglob("*") if p.is_file())
    for text in folder.glob("*.csv"):
        assert text.read_bytes() == (of_unbroken / text.name).read_bytes()


def test_tensorboard_keeps_counters_and_leaves_writers(tmp_path, model):
    callback = keras.callbacks.TensorBoard(tmp_path, update_freq=2, write_graph=False)
    begin(callback, model)
    callback.on_train_batch_begin(0)
    state = capture(callback)
    assert state.attributes == {
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
    old, new = (keras.callbacks.EarlyStopping(patience=patience, min_delta=0.1) for patience in (1, 9))
    begin(old, model)
    run(old, model, 0, 3)
    begin(new, model)
    restore(new, capture(old))
    assert (new.patience, new.wait, new.best, new.best_epoch) == (9, 1, 5.0, 1)
    run(new, model, 3, 4)
    assert new.min_delta == old.min_delta == -0.1  # whose sign Keras changes once


def test_best_weights_are_shared_and_not_copied(model):
    callback = keras.callbacks.EarlyStopping(restore_best_weights=True)
    begin(callback, model)
    run(callback, model, 0, 1)
    assert capture(callback).attributes["best_weights"]["list"][0]["array"] is callback.best_weights[0]


# Settings.


class Patient(keras.callbacks.EarlyStopping):
    """Waits longer after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.patience += 1
        self.start_from_epoch = np.int64(1)


def test_a_setting_that_the_training_changes_is_named_and_what_the_trainer_or_keras_changes_is_not(model):
    early, log = callbacks = [Patient(patience=9, min_delta=0.5), keras.callbacks.CSVLogger("log.csv")]
    unstored = Unstored()
    begin(early, model)
    append_to_files(callbacks)
    unstored.begin(callbacks)
    run(early, model, 0, 3)
    assert early.min_delta == -0.5
    log.append = False
    names = ["Patient.patience", "Patient.start_from_epoch"]
    assert unstored.names(capture_all(callbacks), callbacks) == names


def test_callbacks_are_known_by_their_class_in_their_order():
    early, plateau = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
    history = keras.callbacks.History()
    for now, then, expected in [
        ([early, plateau], [early, plateau], [0, 1]),
        ([plateau, early], [early, plateau], [1, 0]),
        ([early, plateau, history], [plateau], [None, 0, None]),
        ([early, early], [early], [0, None]),
        ([], [early], []),
    ]:
        kinds = [type(callback).__name__ for callback in then]
        assert Settings(now).match(kinds, Settings(then).texts) == expected


def test_of_two_callbacks_of_a_class_the_one_that_stays_is_known_by_its_settings():
    loss, accuracy, other = (keras.callbacks.EarlyStopping(name) for name in ("loss", "accuracy", "mae"))
    for now, expected in [
        *(([accuracy], [1]), ([accuracy, loss], [1, 0])),
        *(([other, loss], [1, 0]), ([other], [0])),
    ]:
        assert Settings(now).match(["EarlyStopping"] * 2, Settings([loss, accuracy]).texts) == expected
