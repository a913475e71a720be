"""ClearML: a task, offline, that records what TensorBoard is told."""

from __future__ import annotations

from typing import Any

import keras
from clearml import Task

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def _task() -> Task:
    Task.set_offline(True)
    return Task.init("clients", "training", auto_resource_monitoring=False)


def train(trainer: Any) -> None:
    task = _task()
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs")], **ARGUMENTS)
    task.close()


stock, ours = both_ways(train)
