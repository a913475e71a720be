"""Quantization: a trained model in int8, whose other weights are trained on and which is evaluated."""

from __future__ import annotations

import keras

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, VALIDATION, Run, X, Y, build


def _quantized() -> keras.Model:
    model = build()
    model.fit(X, Y, epochs=1, verbose=0)
    model.quantize("int8")
    model.compile(keras.optimizers.SGD(0.01), model.loss, metrics=["accuracy"])
    return model


def stock() -> Run:
    model = _quantized()
    model.fit(X, Y, **ARGUMENTS)
    return Run({**Run.of(model).values, "evaluated": model.evaluate(*VALIDATION, verbose=0)})


def ours() -> Run:
    model = _quantized()
    trainer = Trainer(model)
    trainer.fit(X, Y, **ARGUMENTS)
    return Run({**Run.of(model).values, "evaluated": trainer.evaluate(*VALIDATION, verbose=0)}, trainer)
