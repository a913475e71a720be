"""The comparison from the command line; scripts/compare.sh calls it.

Every system trains every workload in processes of their own, taking turns. Ends in a table, pictures,
`results.json` and `report.html`. The journal has each run as soon as it has ended; `--resume` goes on.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scripts.bench import command, compare_page, plots, report, results, runner
from scripts.bench.journal import Journal
from scripts.bench.publish import publish
from scripts.bench.records import RunRecord, RunSpec
from scripts.bench.results import CopyCost, Results
from scripts.bench.systems import DEFAULT_SYSTEMS, SYSTEMS
from scripts.bench.workloads import WORKLOADS

__all__ = ["compare", "main", "plan_round"]

_COPY_WORKERS = [6, 12, 24, 48]
_QUICK_COPY_WORKERS = [6, 48]
_QUICK_BUDGET_S = 165.0
_Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What to compare; the command line's values."""

    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    threads: tuple[int, ...]
    epochs: int
    repeats: int
    quick: bool
    timeout_s: float
    copies: bool
    budget_s: float | None = None
    whole: bool = False


_EPILOG = """\
The protocol of paper P1, whole (three hours; --resume goes on after a cut):
  scripts/compare.sh --workloads=mnist --threads=1,6 --epochs=10 --repeats=3 --output_dir=results/mnist \\
    --resume
  scripts/compare.sh --workloads=mnist-1gb --systems=keras-numpy,keras-tfdata,paper,overlap --threads=6 \\
    --epochs=10 --repeats=3 --no-copies --output_dir=results/mnist-1gb --resume
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison, or shows an earlier one again; returns the exit status."""
    line = _command()
    options = line.parse(argv)
    if options.report:
        try:
            found = results.merge([results.load(Path(path)) for path in options.report])
        except (OSError, ValueError, KeyError) as error:
            line.parser.error(str(error))
        return _end(found, line, options, "What else ran meanwhile is not known.")
    settings = _settings(line.parser, options)
    if options.publish and settings.quick:
        line.parser.error("--quick shows that all works; its figures are not published")
    if options.data_dir:
        os.environ["TFDS_DATA_DIR"] = os.path.abspath(options.data_dir)
    with (
        tempfile.TemporaryDirectory(prefix="overlap_train-compare-") as cache_dir,
        line.journal(options, {**asdict(settings), "budget_s": None}) as journal,
    ):
        try:
            found = compare(settings, journal, cache_dir=cache_dir, say=functools.partial(print, flush=True))
        except runner.ChildFailedError as error:
            print(f"compare: the data could not be prepared: {error}", file=sys.stderr)
            return 1
        except DataChangedError as error:
            line.parser.error(str(error))
        return _end(found, line, options, journal.others_line)


class DataChangedError(ValueError):
    """A comparison goes on with data that are not those of the runs before."""


def compare(settings: Settings, journal: Journal, *, cache_dir: str, say: _Say) -> Results:
    """Runs everything that `settings` asks for, but for what the journal holds.

    Raises:
        ChildFailedError: a workload's data could not be prepared.
        DataChangedError: they are others than in the journal.
    """
    start_s = time.monotonic()
    found = Results(journal.machine, _recorded(settings), {}, notes=tuple(_obstacles(settings)))
    for note in found.notes:
        say(f"note: {note}")
    sources = {}
    for workload in settings.workloads:
        job = {"job": "prepare", "workload": workload, "cache_dir": cache_dir, "quick": settings.quick}
        data = runner.run_job(job, timeout_s=settings.timeout_s)
        sources[workload] = f"{data['source']}; {data['train']:,} + {data['validation']:,} examples"
        before = journal.once(f"data/{workload}", functools.partial(str, sources[workload]))
        if before != sources[workload]:
            raise DataChangedError(f"{workload}: the data were {before!r}, and are {sources[workload]!r}")
        say(f"{workload}: {sources[workload]}")
    found = replace(found, sources=sources)
    if any(name.startswith("overlap") for name in settings.systems):
        job = {"job": "kernels", "build": not settings.quick}
        note = runner.run_job(job, timeout_s=settings.timeout_s)["note"]
        say(f"note: {note}")
        found = replace(found, notes=(*found.notes, note))
    if settings.copies and settings.workloads:
        found = _measure_copies(found, settings, journal, cache_dir, say)
    return _run_rounds(found, settings, journal, cache_dir, say, start_s)


def plan_round(settings: Settings, repeat: int, cache_dir: str) -> list[RunSpec]:
    """Returns the runs of one repeat, workload by workload, beginning with another system each time."""

    def spec(workload: str, system: str, threads: int | None) -> RunSpec:
        epochs, quick, whole = settings.epochs, settings.quick, settings.whole
        return RunSpec(workload, system, threads, repeat, epochs, quick, cache_dir, whole)

    specs = []
    for workload in settings.workloads:
        chosen = [
            spec(workload, name, threads)
            for name in settings.systems
            if SYSTEMS[name].obstacle(WORKLOADS[workload]) is None
            for threads in (settings.threads if SYSTEMS[name].uses_threads else (None,))
        ]
        # Neighbours in a round are neighbours in time, and so make the fairest pairs.
        specs += runner.rotated(chosen, repeat * (1 + len(chosen) // max(1, settings.repeats)))
    return specs


def _run_rounds(
    found: Results, settings: Settings, journal: Journal, cache_dir: str, say: _Say, start_s: float
) -> Results:
    runs: list[RunRecord] = []
    longest_s = 0.0
    for repeat in range(settings.repeats):
        if settings.budget_s is not None and repeat > 0:
            left_s = settings.budget_s - (time.monotonic() - start_s)
            if left_s < longest_s:
                note = f"{repeat} of {settings.repeats} repeats: another would not fit into the time"
                say(f"note: {note}")
                found = replace(found, notes=(*found.notes, note))
                break
        round_start_s = time.monotonic()
        specs = plan_round(settings, repeat, cache_dir)
        for index, spec in enumerate(specs):
            record = RunRecord.from_json(journal.once(_key(spec), _work(spec, settings), keep=_succeeded))
            runs.append(record)
            say(_line(record, f"{repeat + 1}/{settings.repeats}, {index + 1}/{len(specs)}"))
        longest_s = max(longest_s, time.monotonic() - round_start_s)
    return replace(found, runs=tuple(runs))


def _key(spec: RunSpec) -> str:
    return f"run/{spec.workload}/{spec.system}/{spec.threads}/{spec.repeat}"


def _work(spec: RunSpec, settings: Settings) -> Callable[[], Any]:
    return lambda: runner.run(spec, timeout_s=settings.timeout_s).to_json()


def _succeeded(record: Any) -> bool:
    """A run that failed, for want of memory or of time, is tried again by --resume."""
    return record["error"] is None


def _measure_copies(
    found: Results, settings: Settings, journal: Journal, cache_dir: str, say: _Say
) -> Results:
    workload = next((name for name in settings.workloads if name == "mnist"), settings.workloads[0])
    if WORKLOADS[workload].decode is not None:
        return found
    job: dict[str, Any] = {"job": "copies", "workload": workload, "cache_dir": cache_dir}
    try:
        job["workers"] = _QUICK_COPY_WORKERS if settings.quick else _COPY_WORKERS
        costs = journal.once(f"copies/{workload}", lambda: runner.run_job(job, timeout_s=settings.timeout_s))
    except runner.ChildFailedError as error:
        note = f"copies and snapshots not measured: {error}"
        say(f"note: {note}")
        return replace(found, notes=(*found.notes, note))
    return replace(found, copy_costs=tuple(CopyCost(workload, **cost) for cost in costs))


def _end(found: Results, line: command.Command, options: argparse.Namespace, others: str) -> int:
    """Writes and, if asked to, publishes; returns the exit status."""
    output_dir = Path(options.output_dir)
    _write(found, output_dir)
    if options.publish:
        pictures = output_dir / "published"
        try:
            page = compare_page.finding(found, series=options.publish, command=line.as_typed, folder=pictures)
        except ValueError as error:
            print(f"compare: not published: {error}", file=sys.stderr)
            return 1
        print(f"Published: {publish(page, found.machine, others)}")
    return 1 if any(run.error for run in found.runs) else 0


def _write(found: Results, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    found.save(output_dir / "results.json")
    pictures = plots.save_plots(found, output_dir / "plots")
    (output_dir / "report.html").write_text(report.render_html(found, pictures), encoding="utf-8")
    text = report.render_text(found)
    (output_dir / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nWritten:")
    for name in ("report.html", "results.json", "table.txt", "plots"):
        print(f"  {output_dir / name}")


def _command() -> command.Command:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workloads", default="mnist", help=f"of {', '.join(WORKLOADS)}; or all (default: mnist)")
    add("--systems", default="", help=f"of {', '.join(SYSTEMS)} (default: all that are installed)")
    add("--threads", default="", help="validation workers and num_parallel_calls (default: 1,6; quick: 6)")
    add("--epochs", type=int, help="timed epochs of a run (default: 10; quick: 2)")
    add("--repeats", type=int, help="runs of each system (default: 3; quick: as many as fit)")
    add("--whole", action="store_true", help="the first epoch counts, and all before it but the imports")
    add("--quick", action="store_true", help="shrunk data, three minutes in all on two cores")
    add("--data_dir", help="a directory that tensorflow-datasets prepared (default: TFDS_DATA_DIR)")
    add("--timeout_s", type=float, help="a run that takes longer is ended (default: 7200; quick: 120)")
    add("--no-copies", action="store_true", help="leave out the cost of copies for 6 to 48 workers")
    add("--report", nargs="+", metavar="RESULTS_JSON", help="run nothing: show these results, as one")
    return command.Command(parser, script="scripts/compare.sh", series="epochs", output_dir="results/compare")


def _settings(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Settings:
    quick = arguments.quick
    workloads = list(WORKLOADS) if arguments.workloads == "all" else _names(arguments.workloads)
    systems = _names(arguments.systems) or list(DEFAULT_SYSTEMS) + _installed_optional()
    for names, known in ((workloads, list(WORKLOADS)), (systems, list(SYSTEMS))):
        for name in names:
            if name not in known:
                parser.error(f"unknown name {name!r}; expected some of {', '.join(known)}")
    try:
        threads = tuple(int(count) for count in _names(arguments.threads or ("6" if quick else "1,6")))
    except ValueError:
        parser.error(f"--threads takes numbers such as 1,6, got {arguments.threads!r}")
    settings = Settings(
        tuple(workloads),
        tuple(systems),
        threads,
        _default(arguments.epochs, 2 if quick else 10),
        _default(arguments.repeats, 5 if quick else 3),
        quick,
        _default(arguments.timeout_s, 120.0 if quick else 7200.0),
        copies=not arguments.no_copies,
        budget_s=_QUICK_BUDGET_S if quick and arguments.repeats is None else None,
        whole=arguments.whole,
    )
    for option, smallest in (("epochs", settings.epochs), ("repeats", settings.repeats)):
        if smallest < 1:
            parser.error(f"--{option} must be 1 or more, got {smallest}")
    if not threads or min(threads) < 1 or settings.timeout_s <= 0 or not workloads:
        parser.error("--threads, --timeout_s and --workloads need positive values")
    return settings


def _obstacles(settings: Settings) -> list[str]:
    """Returns one line for each system that is left out, and for optional ones that are not installed."""
    lines: dict[str, None] = {}
    for name, system in SYSTEMS.items():
        for workload in settings.workloads:
            obstacle = system.obstacle(WORKLOADS[workload])
            if obstacle is not None and (name in settings.systems or "not installed" in obstacle):
                lines[f"{name} left out: {obstacle}"] = None
    return list(lines)


def _installed_optional() -> list[str]:
    return [name for name, system in SYSTEMS.items() if system.needs and not system.missing()]


def _recorded(settings: Settings) -> dict[str, Any]:
    names = ("workloads", "systems", "threads", "epochs", "repeats", "quick", "whole")
    values = {name: getattr(settings, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _default(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _line(run: RunRecord, place: str) -> str:
    threads = "" if run.threads is None else f" x{run.threads}"
    what = f"[{place}] {run.workload:<12} {run.system + threads:<22}"
    if run.error is not None:
        return f"{what} failed: {run.error}"
    accuracy = "" if run.val_accuracy is None else f", val_acc {run.val_accuracy:.2%}"
    return f"{what} {run.epoch_s:7.2f} s/epoch, {run.cores_busy:.2f} cores busy{accuracy}"


if __name__ == "__main__":
    sys.exit(command.run(main))
