"""What the scheduling comparison shows: lines for the terminal, and the dated page of docs/results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.publish import Finding
from scripts.bench.scheduling_report import plot_growth, plot_policies
from scripts.bench.table import Cells

__all__ = ["finding", "show"]

_WORDS = """\
Several networks at once. *Simulated* figures come from Xavier-like peaks and a duty cycle as load;
*measured* ones from this machine's CPU; those of *the paper's hardware* from paper P4, which had a Jetson
AGX Xavier. They are three different things and are not to be compared across tables."""


def finding(report: dict[str, Any], *, series: str, command: str, folder: Path) -> Finding:
    """Returns the page of the parts that ran; its pictures are drawn into a folder."""
    pictures = {}
    if "simulated" in report:
        pictures = {
            "Makespan at 60% load, simulated": folder / "policies.svg",
            "Growth with the load, simulated": folder / "growth.svg",
        }
        for draw, path in zip((plot_policies, plot_growth), pictures.values(), strict=True):
            draw(report["simulated"], path)
    return Finding(
        series=series,
        question="What do the policies of the scheduler bring, simulated and measured?",
        title="Several networks at once",
        words=_WORDS,
        command=command,
        tables=list(_tables(report)),
        pictures=pictures,
        data=report,
    )


def show(part: str, found: dict[str, Any]) -> None:
    """Prints what a part found."""
    if part == "simulated":
        _show_simulated(found["simulated"])
        print(f"earliest_finish to the optimum on graphs of up to 8 layers, simulated: {found['oracle']}")
    elif part == "costs":
        print(f"cost model, simulated: {found['costs_simulated']}")
        print(f"cost model, layers held out, measured here: {found['costs_measured']}")
    elif part == "agreement":
        ratios = [row["ratio"] for row in found["agreement"]]
        print(f"threads to simulator, makespan: {min(ratios):.3f} to {max(ratios):.3f}")
    elif part == "measured":
        _show_measured(found["measured"])
    else:
        print("on a GPU:", found["gpu"])


def _tables(report: dict[str, Any]) -> Iterator[tuple[str, Cells]]:
    if "simulated" in report:
        yield "Simulated: makespan in ms, and percent less than GPU only", _simulated(report["simulated"])
    if "measured" in report:
        yield "Measured on this CPU: four networks, single images", _measured(report["measured"])
    figures = []
    if "oracle" in report:
        found = report["oracle"]
        shown = f"{found['worst']:.3f} at worst, {found['mean']:.3f} on average of {found['graphs']} graphs"
        figures.append(("`earliest_finish` to the optimum, small graphs, simulated", shown))
    for name in ("costs_simulated", "costs_measured", "gpu"):
        if name in report:
            title = name.replace("_", ", ")
            figures += [(f"{title}: {key.replace('_', ' ')}", _shown(v)) for key, v in report[name].items()]
    if "agreement" in report:
        ratios = [row["ratio"] for row in report["agreement"]]
        figures.append(("threads ÷ simulator, makespan", f"{min(ratios):.3f} to {max(ratios):.3f}"))
    if figures:
        yield "Other figures", Cells(("what", "figure"), tuple(figures))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _simulated(rows: Sequence[dict[str, Any]]) -> Cells:
    policies = list(rows[0]["makespan_s"])
    body = []
    for row in rows:
        less, paper = row["less_than_gpu_only_percent"], row["papers_hardware_percent"]
        cells = (f"{1e3 * row['makespan_s'][p]:.0f} ({less[p]:.0f}%)" for p in policies)
        bounds = (f"{1e3 * row[name]:.0f}" for name in ("lower_bound_s", "lower_bound_cut_s"))
        shown = "-" if paper is None else f"{paper}%"
        body.append((f"{row['scenario']}, load {row['load']}", *cells, *bounds, shown))
    return Cells(("networks", *policies, "bound", "bound, cut", "*paper's hardware*"), tuple(body))


def _measured(rows: dict[str, dict[str, Any]]) -> Cells:
    thread = rows.get("thread_per_network", {}).get("requests_per_s")
    body = []
    for name, row in rows.items():
        per_s = row["requests_per_s"]
        against = f"{per_s / thread:.2f}" if thread else "-"
        seconds = " ".join(f"{value:.2f}" for value in row["seconds"])
        body.append((f"`{name}`", f"{per_s:.1f}", against, seconds, f"{row['overhead']:.2%}"))
    head = ("contender", "requests/s", "÷ a thread each", "seconds of each repeat", "scheduler's overhead")
    return Cells(head, tuple(body))


def _show_simulated(rows: Sequence[dict[str, Any]]) -> None:
    policies = list(rows[0]["makespan_s"])
    print("simulated, Xavier-like figures: makespan in ms (percent less than GPU only)")
    print(
        f"{'scenario':24}{'load':>32}"
        + "".join(f"{policy:>20}" for policy in policies)
        + "     bound     (cut)   paper's hardware"
    )
    for row in rows:
        cells = "".join(
            f"{1e3 * row['makespan_s'][p]:12.1f} ({row['less_than_gpu_only_percent'][p]:4.0f}%)"
            for p in policies
        )
        paper = row["papers_hardware_percent"]
        print(
            f"{row['scenario']:24}{row['load']:>32}{cells}{1e3 * row['lower_bound_s']:10.1f}"
            + f"{1e3 * row['lower_bound_cut_s']:10.1f}"
            + (f"{paper:18.1f}%" if paper else "")
        )
    worst = max(row["to_better_of_gpu_only_and_paper"] for row in rows)
    print(f"earliest_finish to the better of gpu_only and paper, at most: {worst:.3f}")


def _show_measured(rows: dict[str, dict[str, Any]]) -> None:
    first = next(iter(rows.values()))
    load = f", CPU load {first['cpu_load_achieved']:.0%}" if first["cpu_load"] else ""
    print(
        f"measured here: four networks at once on the CPU{load}"
        + f" beside {first['beside']}" * bool(first["beside"])
    )
    thread = rows.get("thread_per_network", {}).get("requests_per_s")
    for name, row in rows.items():
        times = " ".join(f"{seconds:.2f}" for seconds in row["seconds"])
        against = f"{row['requests_per_s'] / thread:6.2f} of a thread each" if thread else ""
        overhead = f", scheduler's overhead {row['overhead']:.2%}" if name.startswith("ours") else ""
        print(f"  {name:28} {row['requests_per_s']:8.2f} requests/s {against}  ({times} s){overhead}")
