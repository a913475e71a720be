"""Grain: its datasets as training and validation data."""

from __future__ import annotations

import grain

from overlap_train import Trainer
from scripts.clients.case import VALIDATION, Run, X, Y, build


def _dataset(x, y, seed: int | None = None) -> grain.MapDataset:
    rows = grain.MapDataset.source(list(zip(x, y, strict=True)))
    return (rows if seed is None else rows.shuffle(seed)).batch(32).to_iter_dataset()


def stock() -> Run:
    model = build()
    model.fit(_dataset(X, Y, 3), validation_data=_dataset(*VALIDATION), epochs=4, verbose=0)
    return Run.of(model)


def ours() -> Run:
    model = build()
    trainer = Trainer(model)
    trainer.fit(_dataset(X, Y, 3), validation_data=_dataset(*VALIDATION), epochs=4, verbose=0)
    return Run.of(model, trainer)
