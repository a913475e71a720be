"""A soak: each kind of its work does what it says, a leak is seen, and what stays level is none."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import psutil
import pytest
from tensorflow.python.framework import func_graph

from overlap_train import Trainer
from scripts.bench import growth, soak_samples, soak_work
from scripts.bench.soak_samples import ALLOWED, Sample, drifts

LEVELS = {"memory": 700 * 2**20, "held": 120 * 2**20, "objects": 400_000, "threads": 9, "descriptors": 7}


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


def test_levels_with_noise_are_no_leak():
    assert leaking(samples()) == []


@pytest.mark.parametrize(
    ("name", "per_sample"),
    [
        ("memory", 2**20),
        ("held", 2**16),
        ("objects", 400),
        ("snapshots", 0.1),
        ("threads", 0.05),
        ("descriptors", 1),
        ("disk", 4096),
        ("shared", 1),
    ],
)
def test_growth_is_a_leak(name, per_sample):
    assert leaking(samples(**{name: per_sample})) == [name]


def test_growth_while_it_warms_up_is_none():
    found = samples()
    later = found[20:]
    warm = [
        Sample(**{**sample.as_json(), "memory": 10**6 * place}) for place, sample in enumerate(found[:20])
    ]
    assert leaking([*warm, *later]) == []


def test_too_few_samples_are_not_judged():
    with pytest.raises(ValueError, match="too few"):
        drifts(samples(count=12))


def test_a_sample_counts_what_is_there(tmp_path):
    (tmp_path / "file").write_bytes(bytes(5000))
    process = psutil.Process()
    sample = soak_samples.take(process, 1.0, 3.5, 7, tmp_path, set())
    with (tmp_path / "file").open("rb"), subprocess.Popen(["sleep", "60"]) as child:
        more = soak_samples.take(process, 1.0, 3.5, 7, tmp_path, set())
        child.kill()
    assert (sample.time_s, sample.uses, sample.disk) == (2.5, 7, 5000)
    assert more.descriptors == sample.descriptors + 1
    assert more.children == sample.children + 1


DAILY = ("failing callback", "resumed", "routed", "shared memory", "scheduled")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in DAILY else pytest.mark.nightly) for k in soak_work.KINDS]
)
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Early stopping conditioned")
def test_each_kind_of_work(kind, tmp_path):
    soak_work.KINDS[kind](random.Random(1), tmp_path)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Early stopping conditioned")
def test_kept_models_are_traced_no_more_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(soak_work, "_KEPT", deque())
    monkeypatch.setattr(func_graph, "func_graph_from_py_func", func_graph.func_graph_from_py_func)
    traces = soak_samples.count_traces()
    soak_work.keep_models()
    counts = [traces()]
    for _ in range(3):
        for kind in ("stopped", "failing training data"):
            for _ in range(2):  # each of the two models
                soak_work.KINDS[kind](random.Random(1), tmp_path)
        counts.append(traces())
    assert counts[0] < counts[1] == counts[2] == counts[3]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_soak_of_three_minutes(tmp_path):
    arguments = ["90", "--legs=2", "--every=1", f"--output_dir={tmp_path}", "--publish"]
    done = subprocess.run(
        [sys.executable, "-c", _SOAK.format(folder=str(tmp_path / "docs")), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Process 2:" in done.stdout, done.stderr[-3000:]
    (page,) = Path(tmp_path, "docs").glob("*-soak.md")
    assert "## Pictures" in page.read_text()


_SOAK = """
import functools, pathlib, sys
from scripts.bench import soak
folder = pathlib.Path({folder!r})
folder.mkdir()
(folder / "index.md").write_text("| question | newest | earlier |\\n|---|---|---|\\n")
soak.publish = functools.partial(soak.publish, folder=folder)
sys.exit(soak.main())
"""


@pytest.mark.filterwarnings("ignore:Early stopping conditioned")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "again" else pytest.mark.nightly) for k in growth.KINDS]
)
def test_each_kind_of_growth_is_done_by_keras_too(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(soak_work, "_trainer", soak_work._trainer)
    monkeypatch.setattr(Trainer, "fit", None)
    soak_work.train_by_keras()
    soak_work.KINDS[kind](random.Random(1), tmp_path)


def test_growth_is_told_for_each_use_once_it_is_warm():
    uses = [*range(0, 480, 20)]
    resident = [
        10**8 - 10**6 * (8 - place) if place < 8 else 10**8 + 3000 * n for place, n in enumerate(uses)
    ]
    assert growth.slope(uses, resident) == growth.Slope(3000.0, 3000.0, 3000.0)
    assert growth.Slope(3000.0, -500.0, 4000.0).shown == "3.0 KB (-0.5 to 4.0)"


@pytest.mark.parametrize(
    "apart",
    [
        lambda *_, **__: {"uses": [*range(0, 50, 2)], "resident": [*range(0, 50, 2)], "held": [5] * 25},
        pytest.param(growth.run_apart, marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
    ],
    ids=["in no process", "in processes of their own"],
)
def test_growth_is_measured_for_both_and_read_back(apart, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "run_apart", apart)
    assert growth.main(["--uses=48", "--kinds", "again", f"--output_dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("held, a use", "`Trainer`", "`keras.Model.fit`"))
    monkeypatch.setattr(growth, "run_apart", lambda *_, **__: pytest.fail("measured again"))
    assert growth.main(["--uses=48", "--kinds", "again", f"--output_dir={tmp_path}", "--resume"]) == 0
    assert "2 entries read back" in capsys.readouterr().out
