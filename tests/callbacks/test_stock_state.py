"""Keras's own callbacks, killed after some epochs and resumed in new objects, go on as if unbroken."""

from __future__ import annotations

import keras
import pytest

from overlap_train._callbacks.rewind import append_to_files, files_of, mark_files, rewind_files
from overlap_train._callbacks.state import check_all
from tests.callbacks.hooks import LOSSES, begin, capture, remembered, restore, run, through_disk

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
@pytest.mark.by_default(each_value=True)
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
    append_to_files([resumed])
    begin(resumed, model)
    model.set_weights(weights)
    restore(resumed, state)
    rewind_files([resumed], marks, killed_after)
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
    assert capture(callback).lost == ()
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.on_train_end()


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
    assert capture(callback).attributes["best_weights"][0] is callback.best_weights[0]
