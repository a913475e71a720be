"""LoRA: low-rank updates of frozen weights (`enable_lora`)."""

from __future__ import annotations

from typing import Any

import keras

from scripts.clients.case import ARGUMENTS, X, Y, both_ways, build


def _model() -> keras.Model:
    model = build()
    model.layers[0].enable_lora(rank=2)
    model.compile(keras.optimizers.Adam(0.01), model.loss, metrics=["accuracy"])
    return model


def train(trainer: Any) -> None:
    trainer.fit(X, Y, **ARGUMENTS)


stock, ours = both_ways(train, _model)
