"""The command line: which command, and how it ends."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, TextIO

from overlap_train._support.version import __version__
from overlap_train.cli.report import Report, UsageError, show

# Each a module of this room: `add_arguments(parser)` and `run(options) -> Report`.
_COMMANDS = {
    "doctor": "report what is installed, what is missing, and how to fix it",
    "explain": "say whether a script's fit would overlap, with which plan, and why not",
    "run": "run a script with its fit and evaluate overlapped",
    "compare": "run a script by Keras and overlapped, and say which is faster",
    "verify": "run a script by Keras and overlapped, and compare all that comes of it",
    "evaluate": "evaluate again each epoch of a run that has kept its weights",
    "build": "compile the convolution for this machine",
}


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the command or the option that a misspelt word may mean."""

    words: set[str] = {*_COMMANDS}

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self.words.update(name for name in names if name.startswith("-"))
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: ([^\s=]+)|invalid choice: '([^']*)'", message)
        word = (unknown[1] or unknown[2]).lower() if unknown else ""
        close = difflib.get_close_matches(word, sorted(self.words - {word}), cutoff=0.7)
        super().error(f"{message}; did you mean {' or '.join(close)}?" if close else message)


class Command(Protocol):
    """A module that is a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""

    def run(self, options: argparse.Namespace) -> Report | None:
        """Do what the command is for; None if there is nothing to report."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `overlap-train`.

    Args:
        arguments: without the program's name; those of the process if None.

    Returns:
        The exit status: 0; 1 if there is something to mend; 2 for wrong usage; 130 after Ctrl-C.
    """
    parser = _Parser(
        prog="overlap-train", description="Keras training with validation overlapped.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"overlap_train {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    modules: dict[str, Command] = {}
    for name, purpose in _COMMANDS.items():
        modules[name] = importlib.import_module(f"overlap_train.cli.{name}")
        command = commands.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        modules[name].add_arguments(command)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:  # 2 for what cannot be parsed, 0 for --help and --version
        return end.code if isinstance(end.code, int) else 2
    # TensorFlow's log lines would clutter the report, but for errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    stream = sys.stdout
    with contextlib.redirect_stdout(sys.stderr if options.json else stream):
        return _run(modules[options.command], options, stream)


def _run(command: Command, options: argparse.Namespace, stream: TextIO) -> int:
    """Run a command and show what it found on `stream`; returns the exit status."""
    try:
        report = command.run(options)
    except UsageError as error:
        print(f"overlap-train {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if report is None:
        return 0
    try:
        show(report, stream, as_json=options.json)
    except BrokenPipeError:  # the reader has ended; the interpreter would complain about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 1 if report.to_mend else 0
