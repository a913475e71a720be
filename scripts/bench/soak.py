"""A soak: short uses of the library for hours, in one process, which in the end may hold no more than before.

    scripts/soak.sh 14400                    four hours
    scripts/soak.sh 3600 --models=kept       with models that stay, so that nothing is traced after a while

The work is of `soak_work`, what is sampled and judged of `soak_samples`. Ends with 1 if something grows.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench import command
from scripts.bench.children import run_module
from scripts.bench.publish import Cells, Finding
from scripts.bench.soak_samples import Drift, Sample, drifts

_UNITS = {"memory": (2**20, "MiB"), "disk": (2**10, "KiB"), "shared": (2**10, "KiB")}
_WORDS = """\
Short fits, evaluations, resumed trainings, evaluation functions, routed calls, scheduled requests and shared
buffers, drawn at random, most of which begin threads and many of which fail or are interrupted. After every
{every} of them, when all have ended, the process is looked at. The slope is that of the later two thirds of
the samples (Theil and Sen), with its 95% interval. It is growth if the whole interval is above zero and more
came in the judged time than 1% of the resident memory, one of Python's objects for each use, one snapshot,
thread, descriptor or child, 64 KiB of files, or anything in `/dev/shm`."""
_MODELS = {
    "new": " Each use makes a model of its own, so TensorFlow traces all anew.",
    "kept": (
        " The uses share two models, and kinds that trace something anew whatever is kept are left out, so "
        "that after a while TensorFlow traces nothing any more."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the soak, if the journal does not hold it, and judges it; returns 1 if something grows."""
    line = _command()
    options = line.parse(argv)
    if options.child is not None:
        _soak(Path(options.child), options)
        return 0
    with line.journal(options) as journal:
        soaked = journal.once("soak", functools.partial(_process, options))
        found = drifts([Sample(**sample) for sample in soaked["samples"]])
        page = Finding(
            question="Does a process that uses the library for hours grow?",
            title="Hours of short uses",
            words=_WORDS.format(every=options.every) + _MODELS[options.models],
            tables=[(_title(soaked), _cells(found))],
            data=soaked,
        )
        line.show(page, options, journal)
    return int(any(drift.leaks for drift in found))


def _process(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the samples of a process."""
    with tempfile.TemporaryDirectory(prefix="overlap_train-soak-") as folder:
        module = ["scripts.bench.soak", str(options.seconds), f"--child={folder}", f"--every={options.every}"]
        own = [f"--seed={options.seed}", f"--models={options.models}"]
        log = Path(options.output_dir) / "child.log"
        found: dict[str, Any] = run_module(*module, *own, log=log, environment=places(folder))
    return found


def places(folder: str) -> dict[str, str]:
    """Returns the environment of a process that keeps all that it writes in a folder."""
    cache = f"{folder}/cache"
    return {"HOME": folder, "TMPDIR": folder, "OVERLAP_TRAIN_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _soak(folder: Path, options: argparse.Namespace) -> None:
    """Works for so long in this process, and prints its samples and the number of uses of each kind."""
    import keras
    import psutil

    from scripts.bench import soak_samples, soak_work

    rng, process, kinds = random.Random(options.seed), psutil.Process(), Counter[str]()
    chosen = list(soak_work.KINDS)
    if options.models == "kept":
        soak_work.keep_models()
        chosen = [kind for kind in chosen if kind not in soak_work.TRACING]
    before = {path.name for path in Path("/dev/shm").glob("*")}
    samples: list[Sample] = []
    began_s = time.monotonic()
    while (now_s := time.monotonic()) - began_s < options.seconds:
        kind = rng.choice(chosen)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            soak_work.KINDS[kind](rng, Path(own))
        kinds[kind] += 1
        if (uses := sum(kinds.values())) % options.every == 0:
            keras.backend.clear_session()
            samples.append(soak_samples.take(process, began_s, now_s, uses, folder, before))
    print(json.dumps({"kinds": kinds, "samples": [sample.as_json() for sample in samples]}))


def _title(found: dict[str, Any]) -> str:
    last, kinds = Sample(**found["samples"][-1]), found["kinds"].items()
    failed = sum(count for kind, count in kinds if kind.startswith(("failing", "interrupted")))
    return f"{last.uses:,} uses in {last.time_s / 3600:.2f} hours, {failed:,} of them failing"


def _cells(rows: Sequence[Drift]) -> Cells:
    head = ("", "level", "slope an hour", "95% interval", "over the judged time", "grows")
    return Cells(head, tuple(_row(drift) for drift in rows))


def _row(drift: Drift) -> tuple[str, ...]:
    unit, name = _UNITS.get(drift.name, (1, ""))

    def shown(value: float) -> str:
        return f"{value / unit:.2f} {name}".strip()

    interval = f"{shown(drift.low)} to {shown(drift.high)}"
    verdict = "yes" if drift.leaks else "no"
    return drift.name, shown(drift.level), shown(drift.per_hour), interval, shown(drift.grown), verdict


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seconds", type=float, nargs="?", default=1800.0, help="(%(default)s)")
    parser.add_argument("--every", type=int, default=25, help="uses between two samples (%(default)s)")
    parser.add_argument("--models", choices=tuple(_MODELS), default="new", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return command.Command(parser, script="scripts/soak.sh", series="soak", output_dir="results/soak")


if __name__ == "__main__":
    sys.exit(command.run(main))
