"""Records of a comparison that never ran, for everything that only reads records."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from scripts.bench.records import LoadSample, RunRecord
from scripts.bench.results import CopyCost, Results

# Seconds an epoch of each repeat. The machine slows down from repeat to repeat, as shared machines do.
EPOCH_S = {
    "keras-numpy": (6.0, 9.0, 12.0),
    "keras-tfdata": (5.0, 7.5, 10.0),
    "keras-tfdata-tuned": (4.5, 6.6, 9.0),
    "paper": (4.8, 7.0, 9.6),
    "overlap": (3.0, 4.5, 6.0),
    "overlap-sync": (3.6, 5.4, 7.2),
    "train-only": (2.8, 4.2, 5.6),
}
ALL_THREADS = {"keras-numpy", "train-only"}


def record(system, repeat, epoch_s, **changes):
    values = {
        "workload": "mnist",
        "threads": None if system in ALL_THREADS else 6,
        "epochs": 2,
        "wall_s": 2 * epoch_s,
        "cpu_s": 2 * 5.0,
        "val_loss": 0.04,
        "val_accuracy": 0.985,
        "hidden_s": 1.0 if system == "overlap" else None,
        "peak_rss_bytes": 900 << 20,
        "notes": ("plan: imagined",) if system == "overlap" else (),
        "load": tuple(LoadSample(0.2 * i, 150.0 + 10 * (i % 4)) for i in range(int(10 * epoch_s))),
    }
    return RunRecord(system=system, repeat=repeat, **{**values, **changes})


@pytest.fixture
def undrawn(monkeypatch):
    """Lets pictures be written blank: a second each goes into their layout, which other tests look at."""

    def write(self, path, **options):
        Path(path).write_text("<svg><defs></defs></svg>")

    monkeypatch.setattr(Figure, "savefig", write)


@pytest.fixture
def runs():
    return [
        record(system, repeat, epoch_s)
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
def found(runs, machine):
    costs = [CopyCost("mnist", workers, 0.0004 * workers, 0.0003) for workers in (6, 12, 24, 48)]
    settings = {"quick": True, "epochs": 2, "repeats": 3}
    return Results(machine, settings, {"mnist": "MNIST <of a test>"}, tuple(runs), tuple(costs), ("a note",))
