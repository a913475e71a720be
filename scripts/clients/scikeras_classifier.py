"""SciKeras: its estimators in a block."""

from __future__ import annotations

from scikeras.wrappers import KerasClassifier

import overlap_train
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _estimator() -> KerasClassifier:
    return KerasClassifier(
        build, epochs=4, batch_size=32, verbose=0, fit__validation_data=ARGUMENTS["validation_data"]
    )


def stock() -> Run:
    estimator = _estimator()
    estimator.fit(X, Y)
    return Run({**Run.of(estimator.model_).values, "predictions": estimator.predict_proba(X)})


def ours() -> Run:
    estimator = _estimator()
    with overlap_train.routed() as routing:
        estimator.fit(X, Y)
    return Run(
        {**Run.of(estimator.model_).values, "predictions": estimator.predict_proba(X)}, routing.trainer
    )
