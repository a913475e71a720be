"""Brings TensorFlow to a GPU machine in pieces, and runs what needs it; see scripts/gpu_tensorflow.sh."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from scripts.gpu import epoch_profile, evidence, network_stages, pieces, training_stages
from scripts.gpu.driver import Evidence, Row, table, wrong_rows
from scripts.gpu.network_stages import Fit
from scripts.gpu.stages import Stage

_TRAINING = ("scripts/gpu/training_stages.py", "overlap_train", "overlap_train/_training")
_NETWORKS = (
    *("scripts/gpu/network_stages.py", "overlap_train", "overlap_train/_training"),
    "overlap_train/_validation",
)
_PROFILE = ("scripts/gpu/epoch_profile.py", "overlap_train/_training")
# Where the machine has CUDA 13's, for a TensorFlow that came without CUDA 12's.
_LIBRARIES = [Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu")]
_STORE = Path("/tmp/overlap_train_tensorflow")


def _policies(rows: list[Row]) -> str:
    names = ("policy", "duty", "seconds")
    lines = [[row[name] for name in names] for row in rows if "policy" in row]
    return table(names, lines) + wrong_rows(rows)


def _tests(rows: list[Row]) -> str:
    failures = [f"- `{row['failure']}`" for row in rows if "failure" in row]
    ends = [line for row in rows for line in row.get("last_words", ())]
    return "\n".join(["```", *ends, "```", "", *failures]) + wrong_rows(rows)


def _of_fits(name: str, fits: Iterable[Fit], title: str) -> Stage:
    body, text = getattr(network_stages, name), network_stages.page_of_networks
    return Stage(name, body, 540, _NETWORKS, sum(fit.expected_s for fit in fits), title, text, by_rows=True)


def _of_training(
    name: str, limit_s: float, source: str, expected_s: float, title: str, text: Callable[[list[Row]], str]
) -> Stage:
    body = getattr(training_stages, name)
    return Stage(name, body, limit_s, (*_TRAINING, source), expected_s, title, text)


_PROFILED = "What the host does between steps"
_POLICIES = "The scheduler's policies on CPU and GPU (P4)"
_SUITE = "The default tests of the trainer, on the card with operations that repeat"
EVIDENCE = Evidence(
    "scripts.gpu.tensorflow_runs run",
    "scripts/gpu_tensorflow.sh run",
    "TensorFlow",
    "tensorflow",
    (
        Stage("profile", epoch_profile.profile, 60, _PROFILE, 45, _PROFILED, epoch_profile.page_of_profile),
        _of_training("policies", 300, "overlap_train/scheduling", 120, _POLICIES, _policies),
        _of_training("tests", 240, "overlap_train/_data", 60, "The tests that need a GPU", _tests),
        _of_training("suite", 300, "overlap_train/_validation", 210, _SUITE, _tests),
        _of_fits("networks", network_stages.fits(), "Whole fits, by Keras and overlapped (P1)"),
        _of_fits("jax", network_stages.fits_on_jax(), "The same by Keras on JAX"),
        _of_fits("further", network_stages.further_fits(), "Every network in every way"),
    ),
    (evidence.EVIDENCE,),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if it is done and right, 1 if something is wrong, 3 to go on."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "run":
            return _run(options)
        if options.command == "fetch":
            pieces.fetch(options.wheels, jax=options.jax)
        elif options.command == "slim":
            pieces.slim(options.wheels, options.slim, generation=options.generation)
        elif options.command == "cut":
            manifest = pieces.cut(sorted(options.wheels.glob("*.whl")), options.pieces)
            print(f"{len(manifest)} pieces: {options.pieces}")
        else:
            missing = pieces.Store(options.store).bring(options.pieces)
            print(f"still missing: {' '.join(missing)}" if missing else "all pieces are here")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu_tensorflow.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download the wheels; needs a network")
    fetch.add_argument("wheels", type=Path)
    fetch.add_argument("--jax", action="store_true", help="JAX too, for Keras on it")
    slimming = commands.add_parser("slim", help="pack the wheels anew for one kind of card, small")
    slimming.add_argument("wheels", type=Path)
    slimming.add_argument("slim", type=Path)
    slimming.add_argument("--generation", type=int, default=90, help="of the card: 75, 80, 90 (90)")
    cutting = commands.add_parser("cut", help="cut the wheels into pieces")
    cutting.add_argument("wheels", type=Path)
    cutting.add_argument("pieces", type=Path)
    bring = commands.add_parser("bring", help="on the GPU machine: take what this command has brought")
    bring.add_argument("pieces", type=Path)
    run = commands.add_parser("run", help="on the GPU machine: put the pieces together and run everything")
    EVIDENCE.add_arguments(run)
    for command in (bring, run):
        command.add_argument(
            "--store", type=Path, default=_STORE, help=f"where pieces come together ({_STORE})"
        )
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.plan:
        return EVIDENCE.run(options)
    if options.emulate:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not options.body:
        site = pieces.Store(options.store).assemble()
        _prepend("PYTHONPATH", [site])
        libraries = [site / "nvidia" / name / "lib" for name in ("cuda_runtime", "cuda_cupti")]
        _prepend("LD_LIBRARY_PATH", [*libraries, *pieces.lend(options.store / "lent", _LIBRARIES)])
    return EVIDENCE.run(options)


def _prepend(variable: str, paths: list[Path]) -> None:
    os.environ[variable] = os.pathsep.join(filter(None, (*map(str, paths), os.environ.get(variable))))


if __name__ == "__main__":
    sys.exit(main())
