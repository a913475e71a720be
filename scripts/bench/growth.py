"""What a use leaves in memory, beside what the same use by `keras.Model.fit` leaves.

    scripts/soak.sh growth                     every kind that Keras can do too, 480 uses of each
    scripts/soak.sh growth --kinds fine again

TensorFlow itself keeps some of each call, so a process that only calls Keras grows too. A soak tells how
much ours grows; this tells how much of it is ours. Each kind runs in a process of its own for each of the
two, with models that stay and one arena of the allocator, which gives back what it can before each sample.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.bench import command, soak_samples
from scripts.bench.children import run_module
from scripts.bench.publish import Cells, Finding
from scripts.bench.soak import places

__all__ = ["KINDS", "Slope", "main", "slope"]

KINDS = ("fine", "again", "stopped", "failing callback", "failing training data", "failing validation data")
_SAMPLES = 24
_WARM_UP = 1 / 3
_WORDS = """\
Each kind of use of the soak that `keras.Model.fit` can do too, {uses} times in a process of its own: by a
`Trainer`, whose workers validate while it trains, and by the model. The models stay, so that nothing is
traced again. A sample is taken after `clear_session`, a collection and `malloc_trim`, with one arena
(`MALLOC_ARENA_MAX=1`): what the program holds of the allocator, and how much memory is resident, in which are
also free pieces between held ones. The growth is the slope of the later two thirds of the samples (Theil and
Sen), with its 95% interval."""
_BY = {"overlap_train": "`Trainer`", "keras": "`keras.Model.fit`"}


@dataclass(frozen=True)
class Slope:
    """Growth in bytes a use: the slope, and the ends of its 95% interval."""

    slope: float
    low: float
    high: float

    @property
    def shown(self) -> str:
        """In KB, with the interval."""
        return f"{self.slope / 1e3:.1f} KB ({self.low / 1e3:.1f} to {self.high / 1e3:.1f})"


def slope(uses: Sequence[int], sizes: Sequence[int]) -> Slope:
    """Returns the slope of the later two thirds of the samples, whose sizes are in bytes."""
    from scipy import stats

    first = int(len(uses) * _WARM_UP)
    found, _, low, high = stats.theilslopes(sizes[first:], uses[first:])
    return Slope(float(found), float(low), float(high))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what the journal does not hold, and prints a row for each kind."""
    line = _command()
    options = line.parse(argv)
    if options.child is not None:
        _measure(options.child, options.kinds[0], options.uses)
        return 0
    if options.uses < 2 * _SAMPLES:
        line.parser.error(f"--uses has to be {2 * _SAMPLES} or more")
    rows, data = [], []
    with line.journal(options) as journal:
        for kind in options.kinds:
            for by in ("overlap_train", "keras"):
                points = journal.once(f"{kind} {by}", functools.partial(_run, by, kind, options))
                held, resident = (slope(points["uses"], points[name]) for name in ("held", "resident"))
                data.append({"kind": kind, "by": by, **points, "slopes": [asdict(held), asdict(resident)]})
                rows.append((kind, _BY[by], held.shown, resident.shown))
        cells = Cells(("use", "by", "held, a use", "resident, a use"), tuple(rows))
        page = Finding(
            question="How much memory does a use leave, and how much of that by Keras?",
            title="What a use leaves in memory",
            words=_WORDS.format(uses=options.uses),
            tables=[("Growth", cells)],
            data=data,
        )
        line.show(page, options, journal)
    return 0


def _run(by: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the samples of a process of its own."""
    with tempfile.TemporaryDirectory(prefix="overlap_train-growth-") as folder:
        module = ["scripts.bench.growth", f"--child={by}", f"--uses={options.uses}", "--kinds", kind]
        log = Path(options.output_dir) / f"{kind.replace(' ', '_')}-{by}.log"
        found: dict[str, Any] = run_module(
            *module, log=log, environment={**places(folder), "MALLOC_ARENA_MAX": "1"}
        )
    return found


def _measure(by: str, kind: str, uses: int) -> None:
    """Works in this process, and prints how much was resident after how many uses."""
    from scripts.bench import soak_work

    if by == "keras":
        soak_work.train_by_keras()
    soak_work.keep_models()
    rng = random.Random(0)
    found: dict[str, list[int]] = {"uses": [], "resident": [], "held": []}
    for done in range(uses + 1):
        if done % (uses // _SAMPLES) == 0:
            _look(found, done)
        with tempfile.TemporaryDirectory() as own:
            soak_work.KINDS[kind](rng, Path(own))
    print(json.dumps(found))


def _look(found: dict[str, list[int]], done: int) -> None:
    """Gives back what can be given, and adds what is left after so many uses."""
    import keras
    import psutil

    keras.backend.clear_session()
    soak_samples.give_back()
    found["uses"].append(done)
    found["resident"].append(int(psutil.Process().memory_info().rss))
    found["held"].append(soak_samples.held_bytes())


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--uses", type=int, default=480, help="of each kind (%(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--child", choices=("overlap_train", "keras"), help=argparse.SUPPRESS)
    return command.Command(
        parser, script="scripts/soak.sh growth", series="growth", output_dir="results/growth"
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
