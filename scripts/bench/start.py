"""Compares whole calls with Keras's from the first second on: fits, second fits, evaluations, new trainers.

Run by `scripts/compare_start.sh`. Each figure is the median of the ratios of pairs, ours ÷ Keras, taken in
turn in fresh processes; in brackets our median ÷ Keras's fastest run. The pairs of both caches share their
run of Keras, which has no cache. "empty" begins with an empty cache of plans and algorithms, "warm" with the
one that a run before has left, "deterministic" is warm under `configure(deterministic=True)`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench import children, command
from scripts.bench.journal import Journal
from scripts.bench.publish import Cells, Finding
from scripts.bench.start_networks import NETWORKS

_COLUMNS = ("first", "second", "evaluate", "again", "new trainer", "five fits")
_WORDS = """\
Whole calls, from the call to its return: tracing, compiling, planning and the first validation included.
Medians of the ratios of pairs, taken in turn in fresh processes, below 1 is faster; in brackets our
median ÷ Keras's fastest run. Caches of plans and timings are empty, or warm from a run before; the
compiled convolution is always there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and prints its tables; returns 0."""
    line = _command()
    options = line.parse(argv)
    rows: list[dict[str, Any]] = []
    columns = options.calls.split(",")
    if unknown := set(columns) - set(_COLUMNS):
        line.parser.error(f"there is no call {sorted(unknown)}")
    with line.journal(options) as journal:
        for network in options.networks.split(","):
            for epochs in map(int, options.epochs.split(",")):
                for caches, pairs in _pairs(network, epochs, options, journal).items():
                    rows.append({"network": network, "epochs": epochs, "caches": caches, "pairs": pairs})
                    print(*_ratios(rows[-1], columns), flush=True)
                (Path(options.output_dir) / "start.json").write_text(json.dumps(rows, indent=1))
        line.show(_finding(rows, columns), options, journal)
    return 0


def _pairs(
    network: str, epochs: int, options: argparse.Namespace, journal: Journal
) -> dict[str, list[dict[str, Any]]]:
    """Runs Keras and ours in turn, another one first each time; a run of Keras is paired with all caches."""
    pairs: dict[str, list[dict[str, Any]]] = {caches: [] for caches in options.caches.split(",")}
    contenders = ["keras", *pairs]
    with tempfile.TemporaryDirectory() as kept:
        warmed = False

        def work(contender: str) -> dict[str, Any]:
            nonlocal warmed
            if contender == "keras":
                return _run("keras", network, epochs, kept, options)
            if contender == "empty":
                with tempfile.TemporaryDirectory() as fresh:
                    return _run("ours", network, epochs, fresh, options)
            if not warmed:  # also where the run before was read back, whose cache is gone
                _run("ours", network, epochs, kept, options)
                warmed = True
            return _run("ours" if contender == "warm" else contender, network, epochs, kept, options)

        for repeat in range(options.repeats):
            turn = repeat % len(contenders)
            runs = {
                contender: journal.once(
                    f"{network}/{epochs}/{repeat}/{contender}", functools.partial(work, contender)
                )
                for contender in (*contenders[turn:], *contenders[:turn])
            }
            for caches, found in pairs.items():
                found.append({"keras": runs["keras"], "ours": runs[caches]})
    return pairs


def _run(system: str, network: str, epochs: int, cache: str, options: argparse.Namespace) -> dict[str, Any]:
    # The compiled convolutions belong to the installation and stay; plans and timings are what a cache holds.
    builds = os.environ.get("OVERLAP_TRAIN_CACHE_DIR") or str(Path.home() / ".cache" / "overlap_train")
    values = {"system": system, "network": network, "epochs": epochs, "calls": options.calls.split(",")}
    values |= {"steps": options.steps, "batch_size": options.batch_size}
    found: dict[str, Any] = children.run_module(
        "scripts.bench.start_child",
        json.dumps(values),
        log=Path(options.output_dir) / "child.log",
        environment={"XDG_CACHE_HOME": cache, "OVERLAP_TRAIN_CACHE_DIR": builds},
    )
    return found


def _ratios(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    def cell(values: Sequence[tuple[float, float]]) -> str:
        ratio = statistics.median(ours / keras for ours, keras in values)
        fastest = statistics.median(ours for ours, _ in values) / min(keras for _, keras in values)
        return f"{ratio:.2f} ({fastest:.2f})"

    pairs = row["pairs"]
    cells = [
        cell([(p["ours"]["seconds"][name], p["keras"]["seconds"][name]) for p in pairs]) for name in columns
    ]
    cells.append(cell([(p["ours"]["peak_mib"], p["keras"]["peak_mib"]) for p in pairs]))
    return (row["network"], str(row["epochs"]), row["caches"], *cells)


def _seconds(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    theirs, ours = (
        [statistics.median(pair[system]["seconds"][name] for pair in row["pairs"]) for name in columns]
        for system in ("keras", "ours")
    )
    shown = (f"{a:.2f} · {b:.2f}" for a, b in zip(theirs, ours, strict=True))
    return (row["network"], str(row["epochs"]), row["caches"], *shown)


def _finding(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Finding:
    """Returns the page: ratios, and seconds of both."""
    head = ("network", "epochs", "caches", *columns)
    ratios = Cells((*head, "peak memory"), tuple(_ratios(row, columns) for row in rows))
    seconds = Cells(head, tuple(_seconds(row, columns) for row in rows))
    return Finding(
        question="How long does a whole call take, from the first second on?",
        title="Whole calls next to Keras's",
        words=_WORDS,
        tables=[("Ours ÷ Keras's", ratios), ("Seconds, Keras · ours, medians", seconds)],
        data=list(rows),
    )


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="from arrays, or as in mlp:tfdata, mlp:pydataset"
    )
    parser.add_argument("--epochs", default="2", help="of the first fit, separated by commas")
    parser.add_argument("--steps", type=int, default=4, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--caches", default="empty,warm")
    parser.add_argument("--calls", default=",".join(_COLUMNS), help="to be timed, such as first,second")
    return command.Command(
        parser, script="scripts/compare_start.sh", series="start", output_dir="results/start"
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
