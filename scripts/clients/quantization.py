"""Quantization: a trained model in int8, whose other weights are trained on and which is evaluated."""

from __future__ import annotations

from typing import Any

import keras

from scripts.clients.case import ARGUMENTS, VALIDATION, X, Y, both_ways, build


def _quantized() -> keras.Model:
    model = build()
    model.fit(X, Y, epochs=1, verbose=0)
    model.quantize("int8")
    model.compile(keras.optimizers.SGD(0.01), model.loss, metrics=["accuracy"])
    return model


def train(trainer: Any) -> dict[str, object]:
    trainer.fit(X, Y, **ARGUMENTS)
    return {"evaluated": trainer.evaluate(*VALIDATION, verbose=0)}


stock, ours = both_ways(train, _quantized)
