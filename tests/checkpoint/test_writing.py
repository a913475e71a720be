"""When a checkpoint is due, and what is said of what it cannot hold."""

from __future__ import annotations

import dataclasses
import threading

import keras
import pytest

from overlap_train import CheckpointPolicy
from overlap_train._checkpoint import container
from overlap_train._checkpoint.content import StartPoint
from overlap_train._checkpoint.resume import Resumer
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train._data.cursor import CursorState
from overlap_train._snapshot import ModelState
from overlap_train.errors import CheckpointError
from overlap_train.records import Span
from tests.networks import linear


@pytest.fixture
def model():
    return linear()


@pytest.fixture
def writer(tmp_path, model):
    made = []

    def make(record=lambda span: None, **policy):
        said: list[str] = []
        policy = CheckpointPolicy(directory=tmp_path, **policy)
        made.append(Resumer(policy, model, {}, ModelState(model), say=said.append, record=record))
        return made[-1], said

    yield make
    for each in made:
        each.close()


def deliver(writer, model, epoch, *, last=False):
    point = StartPoint(epoch, 3 * epoch, False, {}, CursorState(epoch, 3, False))
    writer.delivered(point, ModelState(model).read(), last=last)
    writer.wait()


def test_every_second_epoch_and_the_last_are_written(writer, model, tmp_path):
    made, _ = writer(every_epochs=2)
    written = []
    for epoch in range(1, 6):
        deliver(made, model, epoch, last=epoch == 5)
        written.append(len(list(tmp_path.glob("ckpt-*"))))
    assert written == [0, 1, 1, 2, 3]


def test_inside_epochs_one_is_due_when_so_many_steps_are_made(writer):
    made, _ = writer(every_steps=4)
    assert [made.steps_left(step) for step in (0, 3, 4)] == [4, 1, 4]
    assert [made.due_inside(step) for step in (3, 4, 5)] == [False, True, True]


def test_what_no_checkpoint_holds_is_said_once(writer, model):
    callback = keras.callbacks.Callback()
    callback.thread = threading.Thread()
    made, said = writer()
    made.accept([callback])
    for epoch in (1, 2):
        deliver(made, model, epoch)
    assert [message.split(":")[1].split(";")[0].strip() for message in said] == ["Callback.thread"]


def test_what_callbacks_set_on_the_model_is_named_once(writer, model):
    model.depth, model.name_of_run = 2, float("nan")
    made, said = writer()
    model.best_epoch, model.depth, model.stop_training, model._own = 2, 3, True, 4
    for epoch in (1, 2):
        deliver(made, model, epoch)
        model.best_epoch += 1
    assert [text.partition(": ")[2] for text in said] == ["depth, best_epoch; keep them in a callback"]


def test_one_that_cannot_be_taken_apart_is_passed_over(writer, model, tmp_path):
    made, _ = writer()
    for epoch in (1, 2):
        deliver(made, model, epoch)
    made.close()
    newest = tmp_path / "ckpt-000002.otck"
    state = container.read(newest)
    newest.write_bytes(b"".join(container.encode(dataclasses.replace(state, meta={}))))
    with pytest.warns(RuntimeWarning, match=r"ckpt-000001.*ckpt-000002.*parts"):
        assert writer()[0]._newest.state.epoch == 1


def test_where_the_system_starts_no_thread_the_training_writes_and_each_write_is_a_span(
    writer, tmp_path, model, monkeypatch
):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    spans: list[Span] = []
    made, _ = writer(spans.append)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    deliver(made, model, 1)
    monkeypatch.undo()
    deliver(made, model, 2)
    made.close()
    here = threading.current_thread().name
    expected = [("checkpoint", 3, here), ("checkpoint", 6, "overlap-checkpoint")]
    assert [(span.name, span.step, span.thread) for span in spans] == expected
    assert len(list(tmp_path.glob("ckpt-*"))) == 2


def test_behind_a_keyboard_interrupt_a_write_goes_on_and_keeps_the_lock(tmp_path, model, monkeypatch):
    policy, begun, goes_on = CheckpointPolicy(directory=tmp_path), threading.Event(), threading.Event()
    save = CheckpointStore.save

    def hang(store, written):
        begun.set()
        assert goes_on.wait(60)
        return save(store, written)

    monkeypatch.setattr(CheckpointStore, "save", hang)
    made = Resumer(policy, model, {}, ModelState(model))
    point = StartPoint(1, 3, False, {}, CursorState(1, 3, False))
    made.delivered(point, ModelState(model).read(), last=True)
    assert begun.wait(60)
    with pytest.raises(KeyboardInterrupt), made:
        raise KeyboardInterrupt
    with pytest.raises(CheckpointError, match="Another training"):
        CheckpointStore(tmp_path, 1).acquire()
    goes_on.set()
    (thread,) = [each for each in threading.enumerate() if each.name == "overlap-checkpoint"]
    thread.join(60)
    assert len(list(tmp_path.glob("ckpt-*"))) == 1
    with CheckpointStore(tmp_path, 1) as store:
        store.acquire()
