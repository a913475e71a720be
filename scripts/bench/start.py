"""Compares whole calls with Keras's from the first second on: fits, second fits, evaluations, new trainers.

Run by `scripts/compare_start.sh`. Each figure is the median of the ratios of pairs, ours ÷ Keras, taken in
turn in fresh processes; in brackets our median ÷ Keras's fastest run. The call "steady" is an epoch of the
first fit behind its second, from where the third begins to the return; it has to be asked for. "empty" begins
with an empty cache of plans and algorithms, "warm" with the one that a run before has left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from start_networks import NETWORKS

_COLUMNS = ("first", "second", "evaluate", "again", "new trainer", "five fits")
_HERE = Path(__file__).resolve().parent


def main() -> None:
    """Runs the comparison and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--epochs", default="2", help="of the first fit, separated by commas")
    parser.add_argument("--steps", type=int, default=4, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--caches", default="empty,warm")
    parser.add_argument("--calls", default=",".join(_COLUMNS), help="to be timed, such as first,second")
    parser.add_argument("--json", type=Path, help="where to write every run")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    columns = options.calls.split(",")
    print(f"| network | epochs | caches | {' | '.join(columns)} | peak memory |")
    print("|" + "---|" * (len(columns) + 4))
    for network in options.networks.split(","):
        for epochs in map(int, options.epochs.split(",")):
            for caches in options.caches.split(","):
                pairs = _pairs(network, epochs, caches, options)
                rows.append({"network": network, "epochs": epochs, "caches": caches, "pairs": pairs})
                print(
                    f"| {network} | {epochs} | {caches} | {' | '.join(_cells(pairs, columns))} |", flush=True
                )
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1))


def _pairs(network: str, epochs: int, caches: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs Keras and ours in turn, the first of a pair changing."""
    pairs = []
    with tempfile.TemporaryDirectory() as kept:
        if caches == "warm":
            _run("ours", network, epochs, kept, options)
        for repeat in range(options.repeats):
            pair = {}
            for system in ("keras", "ours") if repeat % 2 else ("ours", "keras"):
                with tempfile.TemporaryDirectory() as fresh:
                    pair[system] = _run(system, network, epochs, kept if caches == "warm" else fresh, options)
            pairs.append(pair)
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
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
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


if __name__ == "__main__":
    main()
