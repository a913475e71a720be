"""What two runs of a script have in common: their calls, logs, variables, callbacks, files and output."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from overlap_train._support.differences import (
    ARRAY,
    ENDED,
    OF_GRADIENTS,
    Difference,
    deciding,
    differences_of,
    different_calls,
)
from overlap_train.cli.contents import arrays, content_of

__all__ = ["Run", "differences"]

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
    r"|^WARNING: All log messages before absl.*\n|^  File \".*\n(?:    .*\n)*"
    r"|^\S*/(?:site-packages|overlap_train|lib/python)\S*:\d+: \w*Warning: (?:.*\n){1,20}?  \S.*\n"
    r"|^\S+:\d+: (?=\w*Warning: )|^  warnings\.warn\(.*\n",
    re.MULTILINE,
)
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


@dataclass(frozen=True)
class Run:
    """What one run of a script did.

    `calls` are those of `fit` and `evaluate` as `recording` notes them, `files` what was written.
    """

    directory: Path
    calls: Sequence[Mapping[str, Any]]
    error: str | None
    variables: Sequence[Sequence[np.ndarray]]  # behind each call
    files: Mapping[str, Any]
    output: str
    refused: str | None = None  # why Keras cannot run the script
    logged: str = ""  # on standard error

    @classmethod
    def read(cls, directory: Path, written: Sequence[Path]) -> Run:
        """Read what a process of `recording` has left."""
        try:
            record = json.loads((directory / "calls.json").read_text())
        except FileNotFoundError:
            numbers = sorted(int(path.stem) for path in directory.glob("*.json"))
            record = {"calls": numbers, "error": f"{ENDED} the process", "refused": None}
        paths = [directory / f"{number}.json" for number in record["calls"]]
        calls = [json.loads(p.read_text(), object_hook=_with_array) for p in paths if p.exists()]
        kept = [path.with_suffix(".npz") for path in paths if path.exists()]
        variables = [list(arrays(path.read_bytes()).values()) if path.exists() else [] for path in kept]
        work = directory / "work"
        files = {str(path.relative_to(work)): content_of(path, str(directory)) for path in written}
        said = (path for path in (directory / "output", directory / "errors"))
        output, logged = (p.read_bytes().decode(errors="replace") if p.exists() else "" for p in said)
        found = [calls, record["error"], files, output, logged]
        calls, error, files, output, logged = _without(str(directory), found)
        return cls(directory, calls, error, variables, files, output, record["refused"], logged)

    def in_fits(self, what: str) -> float:
        """Return what all calls of `fit` took in "seconds", or in "cpu_seconds" of busy cores."""
        fits = (call for call in self.calls if call["name"] == "fit" and not call.get("within"))
        return float(sum(call[what] for call in fits))

    @property
    def reasons(self) -> list[str]:
        """What the fits said of validations in step, each once."""
        said = (text for call in self.calls for text in call.get("messages", ()) if "in step" in text)
        return list(dict.fromkeys(said))

    @property
    def counts(self) -> dict[str, int]:
        """How much there is to compare."""
        names = [call["name"] for call in self.calls]
        epochs = sum(hook == "on_epoch_end" for call in self.calls for hook, *_ in call["hooks"])
        return {
            "fits": names.count("fit"),
            "epochs": epochs,
            "evaluations": names.count("evaluate"),
            "variables": sum(map(len, self.variables)),
            "files": len(self.files),
            "lines of output": len(self.lines),
        }

    @property
    def lines(self) -> list[str]:
        """The lines printed; of one that is drawn over, such as a bar, what was drawn last."""
        return _lines(self.output)

    @property
    def summary(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())


def differences(first: Run, second: Run) -> Iterator[Difference]:
    """Yield where two runs differ, in the order in which it happened; what was written comes last."""
    names = ([call["name"] for call in run.calls] for run in (first, second))
    yield from deciding(differences_of("calls", *names))
    for number, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)):
        place = f"{a['name']} {number + 1}" if len(first.calls) > 1 else a["name"]
        yield from different_calls(place, a, b, first.variables[number], second.variables[number])
    yield from deciding(differences_of("error", first.error, second.error))
    yield from _different_files(first.files, second.files)
    yield from _different_lines("line of output", first.lines, second.lines)
    logged = (_lines(_OF_LIBRARIES.sub("", run.logged)) for run in (first, second))
    yield from _different_lines("line on standard error", *logged)


# Places are those of the first run, the one by Keras: what varies between two of its runs has the same ones.
def _different_files(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield where files differ, those with names that only one run has in the order of their writing."""
    pairs = {name: name for name in first if name in second}
    for kind in (_kind_of_name, os.path.splitext):
        free, taken = defaultdict[str, deque[str]](deque), set(pairs.values())
        for name in second:
            if name not in taken:
                free[kind(name)[-1]].append(name)
        for name in first:
            if name not in pairs and free[kind(name)[-1]]:
                pairs[name] = free[kind(name)[-1]].popleft()
    taken = set(pairs.values())
    for name in [*first, *(name for name in second if name not in taken)]:
        other = pairs.get(name)
        if other is None:
            yield from differences_of("file", *({name: 0} if name in run else {} for run in (first, second)))
            continue
        # A time stays one word: parts of it may be the same twice.
        words, others = (re.sub(r"(?<!\d)[-_]|[-_](?!\d)", r" \g<0> ", each) for each in (name, other))
        for found in _different_words(f"name of file {name}", words, others):
            yield replace(found, size=math.inf)
        for found in differences_of(f"file {name}", first[name], second[other], texts=_different_texts):
            of_gradients = " optimizer/vars/" in found.place  # in a model of Keras's
            yield replace(found, size=found.size * (OF_GRADIENTS if of_gradients else 1.0))


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


def _aligned(
    first: Sequence[str], second: Sequence[str], kinds: Sequence[Callable[[str], str]] | None = None
) -> Iterator[tuple[int | None, int | None]]:
    """Yield which entries correspond: all in order if they are as many, else equal ones, else alike ones."""
    kinds = (str, _kind) if kinds is None else kinds
    if len(first) == len(second) or not kinds:
        yield from zip_longest(range(len(first)), range(len(second)))
        return
    kind, *others = kinds
    matcher = SequenceMatcher(None, [kind(text) for text in first], [kind(text) for text in second])
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        for i, j in _aligned(first[a:a_end], second[b:b_end], () if tag == "equal" else others):
            yield None if i is None else a + i, None if j is None else b + j


def _kind(text: str) -> str:
    """Return a text without its numbers, and without names that have some."""
    return re.sub(r"[\w.+-]*\d[\w.+-]*", "#", text)


def _kind_of_name(name: str) -> list[str]:
    """Return a file's name without its numbers, times and hashes."""
    return [re.sub(r"[0-9a-fA-F]{4,}|\d+", "#", name)]


def _lines(text: str) -> list[str]:
    lines = _COLOUR.sub("", text).removesuffix("\n").split("\n") if text else []
    return [re.split("[\r\b]+", line.rstrip())[-1] for line in lines]


def _without(directory: str, value: Any) -> Any:
    """Return a value without the directory of a run."""
    if isinstance(value, str):
        return value.replace(directory, "")
    if isinstance(value, dict):
        return {_without(directory, key): _without(directory, part) for key, part in value.items()}
    return [_without(directory, part) for part in value] if isinstance(value, list) else value


def _with_array(value: dict[str, Any]) -> Any:
    return np.array(value[ARRAY], value["dtype"]) if ARRAY in value else value
