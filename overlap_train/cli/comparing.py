"""What two runs of a script have in common: their calls, logs, variables, callbacks, files and output."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any

from overlap_train._support.differences import (
    Call,
    Difference,
    deciding,
    differences_of,
    different_calls,
    in_moments,
    raised_alike,
    without_made_up,
)
from overlap_train.cli.contents import content_of

_NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_UNIT = r"(?:[mnuµ]?s|secs?|seconds?|mins?(?! ?[:=]? ?[-\d.])|minutes?|hr?s?|hours?)"
_TIME = rf"{_NUMBER} ?(?:{_UNIT}(?:/\w+)?|[a-z]*/s(?:ec)?)(?!\w)"
# How long something took, and how fast it was: the reason to overlap is that it differs.
_MEASURED = (
    rf"(?<![\w.-])(?:(?:\d+h ?)?\d+m ?{_NUMBER}s(?!\w)|{_TIME}(?:,? ?{_TIME})*"
    r"|\d:\d\d:\d\d(?:\.\d+)?(?![\d:])|\d+:\d\d(?=<)|(?<=<)\d+:\d\d)"
)
_WORD = re.compile(rf"\s*(?:({_MEASURED})|\d+:\d\d:\d\d(?:[.,]\d+)?|[^\s,;:=()\[\]{{}}\"'|/<>@]+|\S)|\s+\Z")
# What libraries log and warn of themselves, and from where a warning or an exception comes.
_OF_LIBRARIES = re.compile(
    r"^(?:\d{4}-\d\d-\d\d \S+: )?[IWEF](?:\d{4}| ).*\.(?:cc|h):\d+\].*\n|^WARNING:(?:tensorflow|absl):.*\n"
    r"|^WARNING: All log messages before absl.*\n"
    r"|^\S*/(?:site-packages|overlap_train|lib/python)\S*:\d+: \w*Warning: (?:.*\n){1,20}?  \S.*\n"
    r"|^\S+:\d+: (?=\w*Warning: )|^  warnings\.warn\(.*\n",
    re.MULTILINE,
)
_DRAWN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n]|[\b]+)|[^\x1b\r\n\b]+|\x1b")


@dataclass(frozen=True)
class Run:
    """What one run of a script did."""

    calls: Sequence[Call] = ()
    error: str | None = None
    files: Mapping[str, Any] = field(default_factory=dict)  # that were written
    output: str = ""
    refused: str | None = None  # why Keras cannot run the script
    logged: str = ""  # on standard error

    @classmethod
    def read(cls, directory: Path, written: Sequence[Path]) -> Run:
        """Read what a process of `recording` has left."""
        try:
            record = json.loads((directory / "calls.json").read_text())
        except FileNotFoundError:
            numbers = sorted(int(path.stem) for path in directory.glob("*.call"))
            record = {"calls": numbers, "error": "ended with the process", "refused": None}
        paths = (directory / f"{number}.call" for number in record["calls"])
        calls = [pickle.loads(path.read_bytes()) for path in paths if path.exists()]
        files = {str(path.relative_to(directory / "work")): content_of(path) for path in written}
        said = (directory / "output", directory / "errors")
        output, logged = (p.read_bytes().decode(errors="replace") if p.exists() else "" for p in said)
        return cls(calls, record["error"], files, output, record["refused"], logged)

    def in_fits(self, what: str) -> float:
        """Return what all calls of `fit` took in "seconds", or in "cpu_seconds" of busy cores."""
        fits = (call for call in self.calls if call.name == "fit" and not call.within)
        return float(sum(getattr(call, what) for call in fits))

    @property
    def reasons(self) -> list[str]:
        """What the fits said of validations in step, each once."""
        said = (text for call in self.calls for text in call.messages if "in step" in text)
        return list(dict.fromkeys(said))

    @property
    def counts(self) -> dict[str, int]:
        """How much there is to compare."""
        names = [call.name for call in self.calls]
        epochs = sum(hook == "on_epoch_end" for call in self.calls for hook, *_ in call.hooks)
        return {
            "fits": names.count("fit"),
            "epochs": epochs,
            "evaluations": names.count("evaluate"),
            "variables": sum(len(call.variables) for call in self.calls),
            "files": len(self.files),
            "lines of output": len(self.lines),
        }

    @property
    def lines(self) -> list[str]:
        """The lines printed; of one that is drawn over, such as a bar, what was drawn last."""
        return _lines(self.output)


def differences(first: Run, second: Run) -> Iterator[Difference]:
    """Yield where two runs differ, in the order in which it happened; what was written comes last."""
    names = ([call.name for call in run.calls] for run in (first, second))
    yield from deciding(differences_of("calls", *names))
    around, counts, so_far = 0, Counter(call.name for call in first.calls), Counter[str]()
    for number, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)):
        around = around if a.within else number
        so_far[a.name] += 1
        place = f"{a.name} {so_far[a.name]}" if counts[a.name] > 1 else a.name
        for each in different_calls(place, a, b, number):
            # In which epoch of the call around it one was made is not known.
            yield replace(each, order=(around, math.inf)) if a.within else each
    errors = (None if run.error is None else without_made_up(run.error) for run in (first, second))
    yield from deciding(differences_of("error", *errors))
    yield from _different_files(first.files, second.files)
    yield from _different_lines("line of output", first.lines, second.lines)
    logged = (_lines(_OF_LIBRARIES.sub("", without_made_up(run.logged))) for run in (first, second))
    yield from _different_lines("line on standard error", *logged)


def fail_alike(first: Run, second: Run) -> bool:
    """Whether all calls of both runs raise the same before an epoch has ended."""
    pairs = zip(first.calls, second.calls, strict=False)
    nothing = bool(first.calls) and not first.counts["epochs"]
    return nothing and all(raised_alike(a.raised, b.raised) for a, b in pairs)


# Places are those of the first run, the one by Keras: what varies between two of its runs has the same ones.
def _different_files(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield where files differ; names that only one run has by their kinds, in the order of their writing."""
    pairs = {name: name for name in first if name in second}
    for suffix in {os.path.splitext(name)[1] for name in first}:
        mine, theirs = (
            sorted((n for n in run if n not in other and os.path.splitext(n)[1] == suffix), key=_kind_of_name)
            for run, other in ((first, second), (second, first))
        )
        aligned = _aligned(mine, theirs, [_kind_of_name])
        pairs |= {mine[a]: theirs[b] for a, b in aligned if a is not None and b is not None}
    for name in [*first, *(name for name in second if name not in pairs.values())]:
        other = pairs.get(name)
        if other is None:
            yield from differences_of("file", *({name: 0} if name in run else {} for run in (first, second)))
            continue
        # A time stays one word: parts of it may be the same twice.
        words, others = (re.sub(r"(?<!\d)[-_]|[-_](?!\d)", r" \g<0> ", each) for each in (name, other))
        for found in _different_words(f"name of file {name}", words, others):
            yield replace(found, size=math.inf)
        for found in differences_of(f"file {name}", first[name], second[other], texts=_different_texts):
            yield from in_moments([found]) if " optimizer/vars/" in found.place else [found]


def _different_texts(place: str, first: str, second: str) -> Iterator[Difference]:
    """Yield where two texts of files differ."""
    return _different_lines(f"{place}, line", first.split("\n"), second.split("\n"))


def _different_lines(place: str, first: Sequence[str], second: Sequence[str]) -> Iterator[Difference]:
    """Yield in which words lines differ, and which lines only one text has, by their kind."""
    surplus: dict[str, list[int | None]] = {}
    for a, b in _aligned(first, second):
        if a is not None and b is not None:
            yield from _different_words(f"{place} {a + 1}", first[a], second[b])
        else:
            lines = surplus.setdefault(_kind(first[a] if a is not None else second[b or 0]), [None, None])
            lines[:] = (old if old is not None else new for old, new in zip(lines, (a, b), strict=True))
    for kind, numbers in surplus.items():
        mine, theirs = ("nothing more" if n is None else f"line {n + 1}" for n in numbers)
        yield Difference(f"{place} like {kind!r}", mine, theirs, math.inf)


def _different_words(place: str, first: str, second: str) -> Iterator[Difference]:
    """Yield in which words two lines differ; a word in which only numbers do has the size of that."""
    if first == second:
        return
    words, others = (
        ["a time" if word[1] else word[0] for word in _WORD.finditer(text)] for text in (first, second)
    )
    last = 0
    for a, b in _aligned(words, others):
        last = a + 1 if a is not None else last
        mine = "nothing" if a is None else words[a]
        theirs = "nothing" if b is None else others[b]
        if a is None or b is None:
            yield Difference(f"{place}, {'behind ' if a is None else ''}word {last}", mine, theirs, math.inf)
        elif mine != theirs:
            mine, theirs = mine.strip(), theirs.strip()
            sizes = [d.size for d in differences_of("", mine, theirs)] if mine != theirs else [math.inf]
            if sizes:
                yield Difference(f"{place}, word {last}", mine, theirs, max(sizes))


def _kind(text: str) -> str:
    """Return a text without its numbers, and without names that have some."""
    return re.sub(r"[\w.+-]*\d[\w.+-]*", "#", text)


def _aligned(
    first: Sequence[str], second: Sequence[str], kinds: Sequence[Callable[[str], str]] = (str, _kind)
) -> Iterator[tuple[int | None, int | None]]:
    """Yield which entries correspond: all in order if they are as many, else equal ones, else alike ones."""
    if len(first) == len(second) or not kinds:
        yield from zip_longest(range(len(first)), range(len(second)))
        return
    kind, *others = kinds
    matcher = SequenceMatcher(None, [kind(text) for text in first], [kind(text) for text in second])
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        for i, j in _aligned(first[a:a_end], second[b:b_end], () if tag == "equal" else others):
            yield None if i is None else a + i, None if j is None else b + j


def _kind_of_name(name: str) -> str:
    """Return a file's name without its numbers, times and hashes."""
    return re.sub(r"[0-9a-fA-F]{4,}|\d+", "#", name)


def _lines(text: str) -> list[str]:
    """Return what was drawn last in each row of a terminal: what begins a row anew leaves nothing of it."""
    rows, row, column = [""], 0, 0
    for drawn in _DRAWN.finditer(without_made_up(text).removesuffix("\n") if text else ""):
        number, move, mark = drawn.groups()
        count = int(number) if move and number.isdigit() else 1
        if mark is not None:
            row += mark == "\n"
            column = max(0, column - len(mark)) if mark[0] == "\b" else 0
        elif move in ("A", "B"):
            row = max(0, row - count) if move == "A" else min(row + count, len(rows) - 1)
        elif move == "G":
            column = count - 1
        elif move == "K" and number in ("", "0", "2"):
            rows[row] = "" if number == "2" else rows[row][:column]
        elif move == "J" and number in ("", "0"):
            rows[row:] = [rows[row][:column]]
        elif move is None:
            rows[row] = rows[row][:column].ljust(column) + drawn[0]
            column = len(rows[row])
        rows += [""] * (row + 1 - len(rows))
    return [row.rstrip() for row in rows] if text else []
