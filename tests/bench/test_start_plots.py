"""The picture of whole calls holds every network, every call and every pair."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib")

from scripts.bench.start_plots import plot_ratios


def pair(ours, keras):
    seconds = {"ours": ours, "keras": keras}
    return {system: {"seconds": {"first": s, "second": s}} for system, s in seconds.items()}


def test_each_call_is_a_panel_and_each_row_is_named(tmp_path):
    rows = [
        {"network": name, "epochs": 2, "caches": "empty", "pairs": [pair(0.5, 1.0), pair(0.75, 1.0)]}
        for name in ("mlp", "lstm:tfdata")
    ]
    path = plot_ratios(rows, ["first", "second"], tmp_path / "new" / "ratios.svg")
    words = path.read_text()
    for text in ("first", "second", "mlp, 2 epochs, empty", "lstm:tfdata, 2 epochs, empty"):
        assert f">{text}</text>" in words
    assert words.count("<use ") >= 8  # a dot for each pair and call
