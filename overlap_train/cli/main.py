"""The command line: which command, and how it ends."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Protocol, TextIO

from overlap_train._support.version import __version__
from overlap_train.cli.report import Report, UsageError, report_only, show

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
_PASSING_ON = (
    "compare",
    "evaluate",
    "explain",
    "run",
    "verify",
)  # hand arguments that are not theirs to what they run


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
        The exit status: 0; 1 if there is something to mend; 2 for wrong usage, and where the report
            cannot be written; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
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
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    try:
        _check_command(parser, words)
        options, rest = parser.parse_known_args(words)
        unknown = rest if options.command not in _PASSING_ON else _before_script(options, words, rest)
        if unknown:
            names = commands.choices[options.command]._option_string_actions
            remedy = _suggestion(unknown[0], names) or f"; its options are {', '.join(names)}"
            parser.error(f"{options.command} does not know {' '.join(unknown)}{remedy}")
        options.rest = rest
    except SystemExit as end:  # 2 for what cannot be parsed, 0 for --help and --version
        return end.code if isinstance(end.code, int) else 2
    # TensorFlow's log lines would clutter the report, but for errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not options.json:
        return _run(modules[options.command], options)
    with contextlib.ExitStack() as resources:
        stream = report_only(resources, put_back=arguments is not None)
        return _run(modules[options.command], options, stream)


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End with an error that helps where the first argument is neither a command nor an option."""
    options = parser._option_string_actions
    word = words[0]
    if word not in (*_COMMANDS, *options):
        kind, names = ("option", options) if word.startswith("-") else ("command", _COMMANDS)
        remedy = _suggestion(word, names) or f"; the commands are {', '.join(_COMMANDS)}"
        parser.error(f"there is no {kind} {word}{remedy}")


def _before_script(options: argparse.Namespace, words: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Return the unknown options before the script's name, which are not the script's."""
    script = getattr(options, "script", None)
    before = words[: words.index(str(script))] if script is not None and str(script) in words else []
    return [word for word in before if word in rest]


def _suggestion(word: str, names: Iterable[str]) -> str:
    """Return a question with the names that are spelled like a word; empty if there are none."""
    close = difflib.get_close_matches(word.partition("=")[0].lower(), list(names), cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _run(command: Command, options: argparse.Namespace, stream: TextIO | None = None) -> int:
    """Run a command and show what it found; returns the exit status."""
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
        show(report, as_json=options.json, stream=stream)
    except BrokenPipeError:  # the reader has ended
        _drop(sys.stdout if stream is None else stream)
    except (OSError, ValueError) as error:  # a full disk; a script that has closed the stream
        print(f"overlap-train {options.command}: the report cannot be written: {error}", file=sys.stderr)
        _drop(sys.stdout if stream is None else stream)
        return 2
    return 1 if report.to_mend else 0


def _drop(stream: TextIO) -> None:
    """Discard what a stream has buffered, or the interpreter would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):  # it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
