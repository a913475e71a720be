"""Compares whole calls with Keras's from the first second on: fits, second fits, evaluations, new trainers.

Run by `scripts/compare_start.sh`. Each figure is the median of the ratios of pairs, ours ÷ Keras, taken in
turn in fresh processes; in brackets our median ÷ Keras's fastest run. The pairs of both caches share their
run of Keras, which has no cache. The call "steady" is an epoch of the
first fit behind its second, from where the third begins to the return; it has to be asked for. "empty" begins
with an empty cache of plans and algorithms, "warm" with the one that a run before has left.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import command
from scripts.bench.journal import Journal
from scripts.bench.orphans import ENDS_WITH_PARENT
from scripts.bench.publish import Finding, publish
from scripts.bench.start_networks import NETWORKS
from scripts.bench.start_plots import plot_ratios
from scripts.bench.table import Cells

_COLUMNS = ("first", "second", "evaluate", "again", "new trainer", "five fits")
_WORDS = """\
Whole calls, from the call to its return: tracing, compiling, planning and the first validation included.
Medians of the ratios of pairs, taken in turn in fresh processes, below 1 is faster; in brackets our
median ÷ Keras's fastest run. Caches of plans and timings are empty, or warm from a run before; the
compiled convolution is always there."""
_HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and prints its table; returns 0."""
    line = _command()
    options = line.parse(argv)
    rows: list[dict[str, Any]] = []
    columns = options.calls.split(",")
    print(f"| network | epochs | caches | {' | '.join(columns)} | peak memory |")
    print("|" + "---|" * (len(columns) + 4))
    with line.journal(options) as journal:
        for network in options.networks.split(","):
            for epochs in map(int, options.epochs.split(",")):
                for caches, pairs in _pairs(network, epochs, options, journal).items():
                    rows.append({"network": network, "epochs": epochs, "caches": caches, "pairs": pairs})
                    print("| " + " | ".join(_row(rows[-1], columns)) + " |", flush=True)
                (Path(options.output_dir) / "start.json").write_text(json.dumps(rows, indent=1))
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))
        if options.publish:
            picture = plot_ratios(rows, columns, Path(options.output_dir) / "ratios.svg")
            page = _finding(rows, columns, options.publish, line.as_typed, picture)
            print(f"Published: {publish(page, journal.machine, journal.others_line)}")
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
            return _run("ours", network, epochs, kept, options)

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
    command = [sys.executable, str(_HERE / "start_child.py"), "--system", system, "--network", network]
    command += [
        "--epochs",
        str(epochs),
        "--steps",
        str(options.steps),
        "--batch-size",
        str(options.batch_size),
        "--calls",
        options.calls,
    ]
    # The compiled convolutions belong to the installation and stay; plans and timings are what a cache holds.
    builds = os.environ.get("OVERLAP_TRAIN_CACHE_DIR") or str(Path.home() / ".cache" / "overlap_train")
    environment = os.environ | {"XDG_CACHE_HOME": cache, "OVERLAP_TRAIN_CACHE_DIR": builds}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, preexec_fn=ENDS_WITH_PARENT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _cells(pairs: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    def cell(values: Sequence[tuple[float, float]]) -> str:
        ratio = statistics.median(ours / keras for ours, keras in values)
        fastest = statistics.median(ours for ours, _ in values) / min(keras for _, keras in values)
        return f"{ratio:.2f} ({fastest:.2f})"

    cells = [
        cell([(p["ours"]["seconds"][name], p["keras"]["seconds"][name]) for p in pairs]) for name in columns
    ]
    return [*cells, cell([(p["ours"]["peak_mib"], p["keras"]["peak_mib"]) for p in pairs])]


def _row(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return (row["network"], str(row["epochs"]), row["caches"], *_cells(row["pairs"], columns))


def _finding(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], series: str, typed: str, picture: Path
) -> Finding:
    """Returns the page: ratios, seconds of both, and the ratios as a picture."""
    first = ("network", "epochs", "caches")
    ratios = Cells((*first, *columns, "peak memory"), tuple(_row(row, columns) for row in rows))
    seconds = []
    for row in rows:
        medians = [
            [statistics.median(pair[system]["seconds"][name] for pair in row["pairs"]) for name in columns]
            for system in ("keras", "ours")
        ]
        shown = (f"{theirs:.2f} · {ours:.2f}" for theirs, ours in zip(*medians, strict=True))
        seconds.append((row["network"], str(row["epochs"]), row["caches"], *shown))
    return Finding(
        series=series,
        question="How long does a whole call take, from the first second on?",
        title="Whole calls next to Keras's",
        words=_WORDS,
        command=typed,
        tables=[
            ("Ours ÷ Keras's", ratios),
            ("Seconds, Keras · ours, medians", Cells((*first, *columns), tuple(seconds))),
        ],
        pictures={"The ratio of each pair": picture},
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
    parser.add_argument("--json", type=Path, help="where to write every run, once more")
    return command.Command(
        parser, script="scripts/compare_start.sh", series="start", output_dir="results/start"
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
