"""Builds, checks and times everything of ours on a GPU, without TensorFlow; see scripts/gpu_evidence.sh."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu import kernel_stages, machine, memory_stages, timing_stages
from scripts.gpu.evidence_page import SECTIONS, plot_all
from scripts.gpu.loading import ROOT
from scripts.gpu.page import Page
from scripts.gpu.record import Record
from scripts.gpu.stages import Context, Run, Stage, run_body, verdict

__all__ = ["STAGES", "main"]

_KERNELS = ("overlap_train/conv/native", "scripts/gpu/cuda_library.py")
_MEMORY = (
    "scripts/gpu/memory_stages.py",
    "overlap_train/zero_copy/cuda.py",
    "overlap_train/zero_copy/pool.py",
)
# The most important first; their limits add up to more than the budget, and few need all of theirs.
STAGES = (
    Stage("build", kernel_stages.build, 120, _KERNELS),
    Stage("check", kernel_stages.check, 150, (*_KERNELS, "scripts/gpu/kernel_stages.py")),
    Stage("timing", timing_stages.timing, 200, (*_KERNELS, "scripts/gpu/timing_stages.py")),
    Stage("sanitize", kernel_stages.sanitize, 150, (*_KERNELS, "scripts/gpu/kernel_stages.py")),
    Stage("streams", timing_stages.streams, 40, (*_KERNELS, "scripts/gpu/timing_stages.py")),
    Stage("mapped", memory_stages.mapped, 120, _MEMORY),
    Stage("load", memory_stages.load, 60, _MEMORY),
)
_BUDGET_S = 540.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu_evidence.sh", description=__doc__)
    parser.add_argument("--emulate", action="store_true", help="rehearse on a CPU; every table says so")
    parser.add_argument("--again", action="store_true", help="repeat what is done, too")
    parser.add_argument("--quick", action="store_true", help="the least that shows that everything runs")
    parser.add_argument(
        "--output", type=Path, help="folder of the page (docs/results; emulated: runs/emulated)"
    )
    parser.add_argument(
        "--budget-s", type=float, default=_BUDGET_S, help=f"seconds for all stages ({_BUDGET_S:.0f})"
    )
    parser.add_argument("--only", nargs="+", choices=[s.name for s in STAGES], help="these stages alone")
    parser.add_argument("--page", action="store_true", help="write the page from what is there, and no more")
    parser.add_argument(
        "--body", nargs=4, help=argparse.SUPPRESS
    )  # a stage's process: folder, card, name, limit
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 if all stages are done and right, 1 if something is wrong, 3 if some are still to be done.
    """
    options = _parser().parse_args(arguments)
    if options.body:
        return _body(options)
    try:
        card = machine.card_name(emulate=options.emulate)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    output = options.output or ROOT / ("runs/emulated" if options.emulate else "docs/results")
    directory = machine.results_directory(output, card, again=options.again)
    stages = [stage for stage in STAGES if not options.only or stage.name in options.only]
    page = _page(directory, card, emulate=options.emulate)
    flags = [flag for flag in ("--emulate", "--quick") if getattr(options, flag[2:])]
    command = [sys.executable, "-m", "scripts.gpu.evidence", *flags, "--body", str(directory), card]
    run = Run(
        stages,
        command,
        directory,
        card=card,
        emulate=options.emulate,
        budget_s=options.budget_s,
        after_each=page.write,
    )
    states = (
        {s.name: run.record(s).status or "not run" for s in stages}
        if options.page
        else run.go(again=options.again)
    )
    page.write(plot_all(_Records(directory, card, options.emulate), directory, emulated=options.emulate))
    print(f"page: {directory}.md")
    return verdict(states, [run.record(stage) for stage in stages])


def _body(options: argparse.Namespace) -> int:
    directory, card, name, limit_s = options.body
    stage = next(stage for stage in STAGES if stage.name == name)
    context = Context(
        _Records(Path(directory), card, options.emulate)(name),
        Path(directory),
        emulate=options.emulate,
        quick=options.quick,
        deadline_s=time.monotonic() + float(limit_s),
    )
    return run_body(stage, context)


class _Records:
    """Gives the record of a stage by its name."""

    def __init__(self, directory: Path, card: str, emulate: bool) -> None:
        self._directory, self._card, self._emulate = directory, card, emulate

    def __call__(self, name: str) -> Record:
        fingerprint = next(stage for stage in STAGES if stage.name == name).fingerprint(self._card)
        return Record(self._directory, name, fingerprint=fingerprint, emulated=self._emulate)


def _page(directory: Path, card: str, *, emulate: bool) -> Page:
    date = directory.name[:10]
    return Page(
        directory.with_name(f"{directory.name}.md"),
        f"The CUDA kernels on {'no GPU' if emulate else card}, {date}",
        f"scripts/gpu_evidence.sh{' --emulate' if emulate else ''}",
        emulated=emulate,
        sections=SECTIONS,
        record=_Records(directory, card, emulate),
        facts=machine.facts(card, emulate=emulate),
    )


if __name__ == "__main__":
    sys.exit(main())
