"""What the commands of all comparisons share: --resume, --publish, and how they end when they are cut off."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import machine
from scripts.bench.journal import Journal
from scripts.bench.publish import Finding, markdown, publish

# These say where everything lies and what becomes of it; no figure depends on them.
_OWN = ("resume", "publish", "output_dir")


class Command:
    """The command line of one comparison: the parser's own options, and those that all comparisons have.

    `series` is the name under which results are published, unless --publish gives another.
    """

    def __init__(self, parser: argparse.ArgumentParser, *, script: str, series: str, output_dir: str) -> None:
        parser.allow_abbrev = False
        parser.prog = script
        self.parser, self.script, self._series = parser, script, series
        add = parser.add_argument
        add("--output_dir", default=output_dir, help="where everything is written (%(default)s)")
        add("--resume", action="store_true", help="go on where an earlier call of the same was cut off")
        add(
            "--publish",
            nargs="?",
            const=series,
            metavar="SERIES",
            help=f"write a dated page of docs/results; without a value it continues the series {series!r}",
        )

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Returns the arguments; a series has to be words of small letters with hyphens between."""
        self._argv = list(sys.argv[1:] if argv is None else argv)
        options = self.parser.parse_args(self._argv)
        if options.publish is not None and not re.fullmatch(r"[a-z]+(-[a-z]+)*", options.publish):
            self.parser.error(f"--publish takes a name such as {self._series}, got {options.publish!r}")
        if options.publish and getattr(options, "quick", False):
            self.parser.error("--quick shows that all works; its figures are not published")
        return options

    def journal(self, options: argparse.Namespace, arguments: dict[str, Any] | None = None) -> Journal:
        """Returns the journal in the output directory; ends the program with a message if that is refused.

        `arguments` are what the figures depend on, where that is not plainly the command line.
        """
        if arguments is None:
            arguments = {name: value for name, value in vars(options).items() if name not in _OWN}
        try:
            journal = Journal(Path(options.output_dir), machine.describe(), arguments, resume=options.resume)
        except ValueError as error:
            self.parser.error(str(error))
        if options.resume:
            print(f"note: {journal.found} entries read back from {options.output_dir}", flush=True)
        return journal

    def show(self, finding: Finding, options: argparse.Namespace, journal: Journal) -> None:
        """Prints the tables, and publishes them if the command says so."""
        for title, cells in finding.tables:
            print(f"\n{title}\n\n{markdown(cells)}")
        print(f"\n{machine.one_line(journal.machine)}. {journal.others_line}")
        if options.publish:
            page = publish(
                finding,
                series=options.publish,
                command=self.as_typed,
                machine=journal.machine,
                others=journal.others_line,
            )
            print(f"Published: {page}\nIts row in index.md: | {finding.question} | [date]({page.name}) |")

    @property
    def as_typed(self) -> str:
        """The command without what says where files lie, whether it went on, and what became of it."""
        own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        own.add_argument("--resume", action="store_true")
        own.add_argument("--publish", nargs="?")
        own.add_argument("--output_dir")
        _, rest = own.parse_known_args(self._argv)
        return " ".join([self.script, *map(shlex.quote, rest)])


def run(main: Callable[[], int]) -> int:
    """Runs a comparison; returns its exit status, and says how to go on when it was cut off."""
    # A child is a session of its own and would outlive this process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return main()
    except KeyboardInterrupt:
        print("\nInterrupted. The same command with --resume goes on from here.", file=sys.stderr)
        return 128 + signal.SIGINT
