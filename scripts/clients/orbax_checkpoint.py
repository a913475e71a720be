"""Orbax: the checkpoint callback of Keras, which writes what each epoch's validation has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def train(trainer: Any, name: str) -> None:
    checkpoint = keras.callbacks.OrbaxCheckpoint(Path.cwd() / name, monitor="val_loss", save_best_only=True)
    trainer.fit(X, Y, callbacks=[checkpoint], **ARGUMENTS)


def stock() -> Run:
    model = build()
    train(model, "stock")
    return Run({**Run.of(model).values, "steps": _steps("stock")})


def ours() -> Run:
    model = build()
    trainer = Trainer(model)
    train(trainer, "ours")
    return Run({**Run.of(model).values, "steps": _steps("ours")}, trainer)


def _steps(name: str) -> list[int]:
    return sorted(int(path.name) for path in Path(name).iterdir() if path.name.isdigit())
