"""Grain: its datasets as training and validation data, with a rollback and a resumed fit."""

from __future__ import annotations

import grain

from overlap_train import Trainer
from scripts.clients.case import VALIDATION, Run, X, Y, build, plateau

# Keras 3.15 makes a step too many in each pass over data whose length it does not know.
STEPS = {"epochs": 4, "steps_per_epoch": 8, "validation_steps": 3, "verbose": 0}


def _dataset(x, y, seed: int | None = None) -> grain.MapDataset:
    rows = grain.MapDataset.source(list(zip(x, y, strict=True)))
    return (rows if seed is None else rows.shuffle(seed)).batch(32).repeat().to_iter_dataset()


def stock() -> Run:
    model = build()
    model.fit(_dataset(X, Y, 3), validation_data=_dataset(*VALIDATION), callbacks=[plateau()], **STEPS)
    return Run.of(model)


def ours() -> Run:
    # Half of it first; the second call goes on from there.
    for epochs in (2, 4):
        model, data, validation = build(), _dataset(X, Y, 3), _dataset(*VALIDATION)
        trainer = Trainer(model)
        callbacks, arguments = [plateau()], STEPS | {"epochs": epochs}
        trainer.fit(data, validation_data=validation, callbacks=callbacks, resume="run", **arguments)
    return Run.of(model, trainer)
