"""Comet: its callback, which counts the batches and logs some of them."""

from __future__ import annotations

import comet_ml

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _experiment() -> comet_ml.OfflineExperiment:
    return comet_ml.OfflineExperiment(project_name="clients", display_summary_level=0, log_code=False)


def stock() -> Run:
    experiment = _experiment()
    model = build()
    model.fit(X, Y, callbacks=[experiment.get_callback("keras")], **ARGUMENTS)
    experiment.end()
    return Run.of(model)


def ours() -> Run:
    experiment = _experiment()
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, callbacks=[experiment.get_callback("keras")], **ARGUMENTS)
    experiment.end()
    return Run.of(model, trainer)
