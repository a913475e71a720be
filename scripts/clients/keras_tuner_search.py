"""Keras Tuner: a search in one block."""

from __future__ import annotations

import keras_tuner

import overlap_train
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _build(parameters: keras_tuner.HyperParameters):
    model = build()
    model.optimizer.learning_rate = parameters.Float("rate", 1e-3, 1e-1, sampling="log")
    return model


def _tuner(name: str) -> keras_tuner.Tuner:
    return keras_tuner.RandomSearch(_build, "val_loss", max_trials=3, seed=1, directory=name)


def _values(tuner: keras_tuner.Tuner) -> dict[str, object]:
    scores = {f"score {n}": t.score for n, t in enumerate(tuner.oracle.get_best_trials(3))}
    weights = {f"weight {n}": w for n, w in enumerate(tuner.get_best_models()[0].get_weights())}
    return {**scores, **weights}


def stock() -> Run:
    tuner = _tuner("stock")
    tuner.search(X, Y, **ARGUMENTS)
    return Run(_values(tuner))


def ours() -> Run:
    tuner = _tuner("ours")
    with overlap_train.routed() as routing:
        tuner.search(X, Y, **ARGUMENTS)
    return Run(_values(tuner), routing.trainer)
