"""Runs of a comparison that never was, for everything that only reads runs."""

import pytest

from scripts.bench.figures import Run

# Seconds an epoch of each repeat. The machine slows down from repeat to repeat, as shared machines do.
EPOCH_S = {
    "keras-numpy": (6.0, 9.0, 12.0),
    "keras-tfdata": (5.0, 7.5, 10.0),
    "keras-tfdata-tuned": (4.5, 6.6, 9.0),
    "paper": (4.8, 7.0, 9.6),
    "overlap": (3.0, 4.5, 6.0),
    "overlap-sync": (3.6, 5.4, 7.2),
}


def make_run(system, repeat, epoch_s, **changes):
    values = {
        "workload": "mnist",
        "threads": None if system == "keras-numpy" else 6,
        "epochs": 2,
        "wall_s": 2 * epoch_s,
        "cpu_s": 2 * 5.0,
        "val_loss": 0.04,
        "val_accuracy": 0.985,
        "hidden_s": 1.0 if system == "overlap" else None,
        "peak_rss_bytes": 900 << 20,
        "notes": ("plan: imagined",) if system == "overlap" else (),
    }
    return Run(system=system, repeat=repeat, **{**values, **changes})


@pytest.fixture
def runs():
    return [
        make_run(system, repeat, epoch_s)
        for system, times_s in EPOCH_S.items()
        for repeat, epoch_s in enumerate(times_s)
    ]


@pytest.fixture
def machine():
    return {
        "cpu": "An Imagined CPU",
        "cores": 2,
        "memory_bytes": 8 << 30,
        "gpus": [],
        "system": "Linux x86_64",
        "python": "3.11.0",
        "versions": {"tensorflow": "2.21.0"},
        "date": "2026-01-01 00:00 UTC",
    }


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Lets all comparisons publish into a folder of the test."""
    folder = tmp_path / "docs"
    folder.mkdir()
    monkeypatch.setattr("scripts.bench.publish.RESULTS", folder)
    return folder
