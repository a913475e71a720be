"""`overlap-train compare`: the comparison with what one would use instead, which a checkout holds."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from overlap_train.cli.report import Finding, Report, UsageError, one_line

__all__ = ["add_arguments", "find_checkout", "run"]

SCRIPT = Path("scripts") / "compare.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: all but `--json` are the script's."""
    parser.usage = "overlap-train compare [--json] [ARGUMENT OF THE COMPARISON ...]"
    parser.epilog = f"Other arguments are passed to {SCRIPT}, such as --quick."


def run(options: argparse.Namespace) -> Report:
    """Run `scripts/compare.sh` of the checkout that holds this package or the working directory."""
    checkout = find_checkout()
    if checkout is None:
        missing = Finding(
            "checkout",
            None,
            f"{SCRIPT} is in the repository and not in the wheel",
            "mend",
            f"run overlap-train compare in a checkout of overlap_train, or {SCRIPT} at its root",
        )
        return Report("compare", {"comparison": [missing]})
    # Standard output is for the report alone where a program reads it.
    output = sys.stderr if options.json else None
    arguments = [argument for argument in options.rest if argument != "--"]
    try:
        status = subprocess.run(
            [str(checkout / SCRIPT), *arguments], check=False, stdout=output, cwd=checkout
        ).returncode
    except OSError as error:
        refused = Finding("script", str(checkout / SCRIPT), f"cannot be run: {one_line(error)}", "mend")
        return Report("compare", {"comparison": [refused]})
    if status == 2:
        raise UsageError(f"{SCRIPT} does not know {' '.join(arguments)}")
    end = Finding("status", status)
    if status:
        end = Finding("status", status, f"it ended with status {status}; it says above why", "mend")
    return Report("compare", {"comparison": [Finding("checkout", str(checkout)), end]})


def find_checkout() -> Path | None:
    """Return the root of a checkout: around the working directory, or the one that this package is of."""
    return next((root for root in _candidates() if _is_checkout(root)), None)


def _candidates() -> Iterator[Path]:
    here = Path.cwd()
    yield from (here, *here.parents)
    yield Path(__file__).resolve().parents[2]


def _is_checkout(root: Path) -> bool:
    return (root / SCRIPT).is_file() and (root / "overlap_train" / "__init__.py").is_file()
