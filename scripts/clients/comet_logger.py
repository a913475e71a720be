"""Comet: its callback, which counts the batches and logs some of them."""

from __future__ import annotations

from typing import Any

import comet_ml

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def _experiment() -> comet_ml.OfflineExperiment:
    return comet_ml.OfflineExperiment(project_name="clients", display_summary_level=0, log_code=False)


def train(trainer: Any) -> None:
    experiment = _experiment()
    trainer.fit(X, Y, callbacks=[experiment.get_callback("keras")], **ARGUMENTS)
    experiment.end()


stock, ours = both_ways(train)
