"""The model of scaling: the ring all-reduce's formula, and the link found again from what it predicts."""

from __future__ import annotations

import pytest

from scripts.bench import scaling
from scripts.bench.scaling import Link, fit_link, ring_s, step_s

LINK = Link(bytes_per_s=1e9, latency_s=1e-4)


def test_one_worker_sends_nothing():
    assert ring_s(1e6, 1, LINK) == 0
    assert step_s(0.5, 1e6, 1e3, 1, LINK) == 0.5


def test_a_ring_of_two_sends_half_of_the_bytes_twice():
    assert ring_s(1e6, 2, LINK) == pytest.approx(1e6 / 1e9 + 2e-4)


def test_in_a_large_ring_the_bytes_cost_twice_their_time_and_latency_grows():
    assert ring_s(1e9, 1000, Link(1e9, 0.0)) == pytest.approx(2.0, rel=2e-3)
    assert ring_s(0, 1000, LINK) == pytest.approx(1998e-4)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_link_is_found_again(workers):
    times = [ring_s(size, workers, LINK) for size in (scaling._SMALL, scaling._LARGE)]
    link = fit_link(*times, workers)
    assert link.bytes_per_s == pytest.approx(LINK.bytes_per_s)
    assert link.latency_s == pytest.approx(LINK.latency_s)


def test_predictions_are_marked(monkeypatch, capsys):
    measured = {"step_s": 0.01, "gradient_bytes": 1e6, "output_bytes": 1e4, "small": 1e-3, "large": 5e-3}
    monkeypatch.setattr(scaling, "_run_workers", lambda *_: measured)
    scaling.main(["--workers=2"])
    lines = capsys.readouterr().out.splitlines()
    beyond = [line for line in lines if "efficiency" in line]
    assert len(beyond) == 5
    assert all(line.endswith("(predicted)") for line in beyond)
    assert sum("(measured)" in line for line in lines) == 2
