"""CodeCarbon: a tracker around the training."""

from __future__ import annotations

from typing import Any

from codecarbon import OfflineEmissionsTracker

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def _tracker() -> OfflineEmissionsTracker:
    return OfflineEmissionsTracker(country_iso_code="FRA", save_to_file=False, log_level="error")


def train(trainer: Any) -> None:
    tracker = _tracker()
    with tracker:
        trainer.fit(X, Y, **ARGUMENTS)


stock, ours = both_ways(train)
