"""Brings TensorFlow to a GPU machine in pieces, and runs what needs it; see scripts/gpu_tensorflow.sh."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu import companion_stages, equal_stages, machine, overlap_stages, pytest_stages, slim, wheels
from scripts.gpu.loading import ROOT
from scripts.gpu.page import Page
from scripts.gpu.pieces import PIECE_MIB, PieceError, Store, cut
from scripts.gpu.record import Record
from scripts.gpu.stages import Context, Run, Stage, run_body, verdict
from scripts.gpu.tensorflow_page import SECTIONS

__all__ = ["STAGES", "main"]

_OVERLAP = (
    "scripts/gpu/overlap_stages.py",
    "overlap_train",
    "overlap_train/_training",
    "overlap_train/_validation",
)
_COMPANIONS = ("scripts/gpu/companion_stages.py", "overlap_train")
STAGES = (
    Stage("pieces", wheels.rehearse, 90, ("scripts/gpu/pieces.py", "scripts/gpu/wheels.py")),
    Stage("overlap", overlap_stages.overlap, 240, _OVERLAP),
    Stage("operation", companion_stages.operation, 240, (*_COMPANIONS, "overlap_train/conv/native")),
    Stage("equal", equal_stages.equal, 180, ("scripts/gpu/equal_stages.py", *_OVERLAP[1:])),
    Stage("donation", overlap_stages.donation, 120, _OVERLAP),
    Stage("divided", overlap_stages.divided, 120, (*_OVERLAP, "overlap_train/parallel")),
    Stage("buffers", companion_stages.buffers, 90, (*_COMPANIONS, "overlap_train/zero_copy")),
    Stage("policies", companion_stages.policies, 300, (*_COMPANIONS, "overlap_train/scheduling")),
    Stage("tests", pytest_stages.tests, 240, ("scripts/gpu/pytest_stages.py", "overlap_train")),
    Stage("suite", pytest_stages.suite, 300, ("scripts/gpu/pytest_stages.py", *_OVERLAP[1:])),
)
_BUDGET_S = 540.0
_LIBRARIES = [Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu")]
_STORE = Path("/tmp/overlap_train_tensorflow")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu_tensorflow.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download the wheels; needs a network")
    fetch.add_argument("wheels", type=Path)
    slimming = commands.add_parser("slim", help="pack the wheels anew for one kind of card, small")
    slimming.add_argument("wheels", type=Path)
    slimming.add_argument("slim", type=Path)
    slimming.add_argument("--generation", type=int, default=90, help="of the card: 75, 80, 90 (90)")
    cutting = commands.add_parser("cut", help="cut the wheels into pieces")
    cutting.add_argument("wheels", type=Path)
    cutting.add_argument("pieces", type=Path)
    cutting.add_argument(
        "--piece-mib", type=float, default=PIECE_MIB, help=f"of a piece, at most ({PIECE_MIB})"
    )
    bring = commands.add_parser("bring", help="on the GPU machine: take what this command has brought")
    bring.add_argument("pieces", type=Path)
    run = commands.add_parser("run", help="on the GPU machine: put the pieces together and run everything")
    run.add_argument("--emulate", action="store_true", help="rehearse on a CPU; every table says so")
    run.add_argument(
        "--libraries",
        type=Path,
        nargs="+",
        default=_LIBRARIES,
        help="where the machine has CUDA 13's libraries, for a TensorFlow that came without CUDA 12's",
    )
    run.add_argument("--again", action="store_true", help="repeat what is done, too")
    run.add_argument("--output", type=Path, help="folder of the page (docs/results; emulated: runs/emulated)")
    run.add_argument(
        "--budget-s", type=float, default=_BUDGET_S, help=f"seconds for all stages ({_BUDGET_S:.0f})"
    )
    run.add_argument("--only", nargs="+", choices=[s.name for s in STAGES], help="these stages alone")
    run.add_argument(
        "--body", nargs=4, help=argparse.SUPPRESS
    )  # a stage's process: folder, card, name, limit
    for command in (bring, run):
        command.add_argument(
            "--store", type=Path, default=_STORE, help=f"where pieces come together ({_STORE})"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 if it is done and right, 1 if something is wrong, 3 if something is still to be done.
    """
    options = _parser().parse_args(arguments)
    try:
        commands = {"fetch": _fetch, "slim": _slim, "cut": _cut, "bring": _bring, "run": _run}
        return commands[options.command](options)
    except (PieceError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1


def _fetch(options: argparse.Namespace) -> int:
    wheels.fetch(options.wheels)
    return 0


def _slim(options: argparse.Namespace) -> int:
    slim.slim(options.wheels, options.slim, generation=options.generation)
    return 0


def _cut(options: argparse.Namespace) -> int:
    files = sorted(options.wheels.glob("*.whl"))
    manifest = cut(files, options.pieces, piece_bytes=int(options.piece_mib * (1 << 20)))
    print(f"{len(files)} wheels in {len(manifest.pieces)} pieces: {options.pieces}")
    return 0


def _bring(options: argparse.Namespace) -> int:
    missing = Store(options.store).bring(options.pieces)
    print(f"still missing: {' '.join(missing)}" if missing else "all pieces are here")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.body:
        return _body(options)
    if options.emulate:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        site = Store(options.store).assemble()
        _prepend("PYTHONPATH", [site])
        libraries = [site / "nvidia" / name / "lib" for name in ("cuda_runtime", "cuda_cupti")]
        _prepend("LD_LIBRARY_PATH", [*libraries, *slim.lend(options.store / "lent", options.libraries)])
    card = machine.card_name(emulate=options.emulate)
    output = options.output or ROOT / ("runs/emulated" if options.emulate else "docs/results")
    directory = machine.results_directory(output, f"{card} tensorflow", again=options.again)
    stages = [stage for stage in STAGES if not options.only or stage.name in options.only]
    page = _page(directory, card, emulate=options.emulate)
    flags = ["--emulate"] if options.emulate else []
    run = Run(
        stages,
        [sys.executable, "-m", "scripts.gpu.tensorflow_runs", "run", *flags, "--body", str(directory), card],
        directory,
        card=card,
        emulate=options.emulate,
        budget_s=options.budget_s,
        after_each=page.write,
    )
    states = run.go(again=options.again)
    page.write()
    print(f"page: {directory}.md")
    return verdict(states, [run.record(stage) for stage in stages])


def _prepend(variable: str, paths: list[Path]) -> None:
    os.environ[variable] = os.pathsep.join(filter(None, (*map(str, paths), os.environ.get(variable))))


def _body(options: argparse.Namespace) -> int:
    directory, card, name, limit_s = options.body
    stage = next(stage for stage in STAGES if stage.name == name)
    context = Context(
        _record(Path(directory), stage, card, options.emulate),
        Path(directory),
        emulate=options.emulate,
        quick=False,
        deadline_s=time.monotonic() + float(limit_s),
    )
    return run_body(stage, context)


def _record(directory: Path, stage: Stage, card: str, emulate: bool) -> Record:
    return Record(directory, stage.name, fingerprint=stage.fingerprint(card), emulated=emulate)


def _page(directory: Path, card: str, *, emulate: bool) -> Page:
    by_name = {stage.name: stage for stage in STAGES}
    return Page(
        directory.with_name(f"{directory.name}.md"),
        f"TensorFlow on {'no GPU' if emulate else card}, {directory.name[:10]}",
        f"scripts/gpu_tensorflow.sh run{' --emulate' if emulate else ''}",
        emulated=emulate,
        sections=SECTIONS,
        record=lambda name: _record(directory, by_name[name], card, emulate),
        facts=machine.facts(card, emulate=emulate, packages=()),
    )


if __name__ == "__main__":
    sys.exit(main())
