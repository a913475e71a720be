"""ClearML: a task, offline, that records what TensorBoard is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

# ClearML forks a reporter while a thread of its own begins Git. Where the fork comes first, it holds the pipe
# for which that thread waits, and `close` waits for ever, with or without us. A thread reports instead.
Path("clearml.conf").write_text("sdk.development.report_use_subprocess: false\n")
os.environ["CLEARML_CONFIG_FILE"] = str(Path("clearml.conf").resolve())
from clearml import Task  # noqa: E402  reads that file

from scripts.clients.case import ARGUMENTS, X, Y, both_ways  # noqa: E402


def _task() -> Task:
    Task.set_offline(True)
    return Task.init("clients", "training", auto_resource_monitoring=False)


def train(trainer: Any) -> None:
    task = _task()
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs")], **ARGUMENTS)
    task.close()


stock, ours = both_ways(train)
