"""Hugging Face datasets: a stream of rows, as a generator of batches, with a rollback and a resumed fit."""

from __future__ import annotations

import datasets

from overlap_train import Trainer
from scripts.clients.case import VALIDATION, Run, X, Y, build, plateau

STEPS = {"epochs": 4, "steps_per_epoch": 8, "validation_data": VALIDATION, "verbose": 0}


def _stream(x, y):
    table = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
    return table.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=64).repeat(None)


def batches(stream):
    for batch in stream.with_format("numpy").iter(32):
        yield batch["x"], batch["y"]


def stock() -> Run:
    model = build()
    model.fit(batches(_stream(X, Y)), callbacks=[plateau()], **STEPS)
    return Run.of(model)


def ours() -> Run:
    # Half of it first; the second call goes on from there.
    for epochs in (2, 4):
        model, data = build(), batches(_stream(X, Y))
        trainer = Trainer(model)
        trainer.fit(data, callbacks=[plateau()], resume="run", **STEPS | {"epochs": epochs})
    return Run.of(model, trainer)
