"""ClearML: a task, offline, that records what TensorBoard is told."""

from __future__ import annotations

import keras
from clearml import Task

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _task() -> Task:
    Task.set_offline(True)
    return Task.init("clients", "training", auto_resource_monitoring=False)


def stock() -> Run:
    task = _task()
    model = build()
    model.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs")], **ARGUMENTS)
    task.close()
    return Run.of(model)


def ours() -> Run:
    task = _task()
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs")], **ARGUMENTS)
    task.close()
    return Run.of(model, trainer)
