"""CodeCarbon: a tracker around the training."""

from __future__ import annotations

from codecarbon import OfflineEmissionsTracker

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _tracker() -> OfflineEmissionsTracker:
    return OfflineEmissionsTracker(country_iso_code="FRA", save_to_file=False, log_level="error")


def stock() -> Run:
    model = build()
    with _tracker():
        model.fit(X, Y, **ARGUMENTS)
    return Run.of(model)


def ours() -> Run:
    tracker = _tracker()
    model = build()
    trainer = Trainer(model)
    with tracker:
        trainer.fit(X, Y, **ARGUMENTS)
    return Run.of(model, trainer)
