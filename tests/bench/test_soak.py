"""A soak: each kind of its work does what it says, a leak is seen, and what stays level is none."""

import random

import numpy as np
import pytest

from scripts.bench import soak, soak_work
from scripts.bench.soak_samples import ALLOWED, Sample, drifts

LEVELS = {"memory": 700 * 2**20, "objects": 400_000, "threads": 9, "descriptors": 7}


def samples(count=60, noise=0.001, **per_sample):
    """Makes levels with noise, and growth by name."""
    rng = np.random.default_rng(0)
    found = []
    for place in range(count):
        values = {name: LEVELS.get(name, 0) + per_sample.get(name, 0) * place for name in ALLOWED}
        values["memory"] *= 1 + noise * rng.standard_normal()
        found.append(Sample(time_s=60.0 * place, uses=25 * place, **values))
    return found


def leaking(found):
    return [drift.name for drift in drifts(found) if drift.leaks]


@pytest.mark.parametrize(
    ("name", "per_sample"),
    [
        ("memory", 2**20),
        ("objects", 400),
        ("snapshots", 0.1),
        ("threads", 0.05),
        ("descriptors", 1),
        ("disk", 4096),
        ("shared", 1),
    ],
)
def test_growth_is_a_leak(name, per_sample):
    assert leaking(samples()) == [], "levels with noise are no leak"
    assert leaking(samples(**{name: per_sample})) == [name]
    with pytest.raises(ValueError, match="too few"):
        drifts(samples(count=12, **{name: per_sample}))


# What users do is tested in tests/whole_fits; here, that the work of the soak runs.
@pytest.mark.nightly
@pytest.mark.parametrize("kind", soak_work.KINDS)
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Early stopping conditioned")
def test_each_kind_of_work(kind, tmp_path):
    soak_work.KINDS[kind](random.Random(1), tmp_path)


@pytest.mark.parametrize(("growth", "status"), [(0, 0), (1, 1)])
def test_a_soak_says_what_grows(tmp_path, monkeypatch, published, growth, status):
    found = {"kinds": {"fine": 1500}, "samples": [s.as_json() for s in samples(descriptors=growth)]}
    monkeypatch.setattr(soak, "run_module", lambda *_, **__: found)
    assert soak.main(["90", f"--output_dir={tmp_path / 'out'}", "--publish"]) == status
    (page,) = published.glob("*-soak.md")
    assert "## 1,475 uses in 0.98 hours, 0 of them failing" in page.read_text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_soak_of_three_minutes(tmp_path, published):
    arguments = ["180", "--every=1", f"--output_dir={tmp_path / 'out'}", "--publish"]
    assert soak.main(arguments) in (0, 1)  # of so few uses nothing is known
    (page,) = published.glob("*-soak.md")
    assert " of them failing" in page.read_text()
