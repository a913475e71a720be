"""The wrappers of Keras for scikit-learn, in a block."""

from __future__ import annotations

import keras
from sklearn.model_selection import cross_val_score

import overlap_train
from scripts.clients.case import Run, X, Y, build


def _model(X: object, y: object) -> keras.Model:
    model = build()
    model.compile(keras.optimizers.Adam(0.01), "mse")  # the wrapper makes one-hot labels
    return model


def _estimator() -> keras.wrappers.SKLearnClassifier:
    fit = {"epochs": 4, "batch_size": 32, "verbose": 0, "validation_split": 0.25}
    return keras.wrappers.SKLearnClassifier(_model, fit_kwargs=fit)


def _values(scores: object) -> dict[str, object]:
    return {"scores": scores}


def stock() -> Run:
    estimator = _estimator()
    return Run(_values(cross_val_score(estimator, X, Y, cv=3)))


def ours() -> Run:
    estimator = _estimator()
    with overlap_train.routed() as routing:
        scores = cross_val_score(estimator, X, Y, cv=3)
    return Run(_values(scores), routing.trainer)
