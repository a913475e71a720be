"""Plots and timelines of the scheduling comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.plots import save

__all__ = ["plot_growth", "plot_policies"]


def plot_policies(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars: makespan against GPU only at 60% load, for each scenario and policy."""
    plt = _pyplot()
    chosen = [row for row in rows if row["load"] == "60%"]
    policies = list(chosen[0]["makespan_s"])
    figure, axes = plt.subplots(figsize=(10, 4.5), layout="constrained")
    width = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        heights = [row["makespan_s"][policy] / row["makespan_s"]["gpu_only"] for row in chosen]
        axes.bar([x + number * width for x in range(len(chosen))], heights, width, label=policy)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(chosen))], [row["scenario"] for row in chosen])
    axes.set_ylabel("makespan, GPU only = 1")
    axes.set_ylim(0, 2)
    axes.set_title("60% GPU load, simulated with Xavier-like figures")
    axes.legend()
    save(figure, path)
    plt.close(figure)


def plot_growth(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Lines: growth of the makespan with load, against the same policy without load."""
    plt = _pyplot()
    scenarios = [s for s in dict.fromkeys(row["scenario"] for row in rows) if "beside" not in s]
    figure, axes = plt.subplots(1, len(scenarios), figsize=(3 * len(scenarios), 3.2), layout="constrained")
    for axis, scenario in zip(axes, scenarios, strict=True):
        chosen = [row for row in rows if row["scenario"] == scenario]
        for policy in ("gpu_only", "paper", "earliest_finish"):
            base_s = chosen[0]["makespan_s"][policy]
            loads = [row["load"] for row in chosen]
            axis.plot(loads, [row["makespan_s"][policy] / base_s for row in chosen], "o-", label=policy)
        axis.set_title(scenario)
        axis.set_xlabel("GPU load")
    axes[0].set_ylabel("growth (simulated)")
    axes[0].legend()
    save(figure, path)
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
