"""LoRA: low-rank updates of frozen weights (`enable_lora`)."""

from __future__ import annotations

import keras

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _model() -> keras.Model:
    model = build()
    model.layers[0].enable_lora(rank=2)
    model.compile(keras.optimizers.Adam(0.01), model.loss, metrics=["accuracy"])
    return model


def stock() -> Run:
    model = _model()
    model.fit(X, Y, **ARGUMENTS)
    return Run.of(model)


def ours() -> Run:
    model = _model()
    trainer = Trainer(model)
    trainer.fit(X, Y, **ARGUMENTS)
    return Run.of(model, trainer)
