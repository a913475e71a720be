"""What two runs of a script have in common: their calls, logs, variables, callbacks, files and output."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Difference", "Run", "differences"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Parts of a file's name that a run makes up: times, process ids, hashes.
_MADE_UP = re.compile(r"\d{4,}")
_LARGEST_TEXT = 5_000_000  # bytes


@dataclass(frozen=True)
class Difference:
    """One place where two runs differ; `size` is relative, and infinite for what is no number."""

    place: str
    first: Any
    second: Any
    size: float

    def __str__(self) -> str:
        if isinstance(self.first, np.ndarray):
            return self.place
        return f"{self.place}: {_short(self.first)} by Keras, {_short(self.second)} overlapped"


@dataclass(frozen=True)
class Run:
    """What one run of a script did.

    `calls` are those of `fit` and `evaluate` as `recording` notes them, `files` what was written, by a name
    without times and process ids.
    """

    directory: Path
    calls: Sequence[Mapping[str, Any]]
    error: str | None
    variables: Sequence[Sequence[np.ndarray]]  # behind each call
    files: Mapping[str, Any]
    output: str

    @classmethod
    def read(cls, directory: Path, written: Sequence[Path]) -> Run:
        """Read what a process of `recording` has left."""
        try:
            record = json.loads((directory / "calls.json").read_text())
        except FileNotFoundError:
            record = {"calls": [], "error": "the process ended before its script did"}
        variables = []
        for number in range(len(record["calls"])):
            path = directory / f"{number}.npz"
            variables.append(list(_arrays(path.read_bytes()).values()) if path.exists() else [])
        work = directory / "work"
        files = {_MADE_UP.sub("#", str(path.relative_to(work))): _content(path) for path in written}
        output = (directory / "output").read_text(errors="replace").replace(str(directory), "")
        return cls(directory, record["calls"], record["error"], variables, files, output)

    @property
    def fit_seconds(self) -> float:
        """The seconds in all calls of `fit`."""
        return float(sum(call["seconds"] for call in self.calls if call["name"] == "fit"))

    @property
    def reasons(self) -> list[str]:
        """What the fits said of validations in step, each once."""
        said = (text for call in self.calls for text in call["messages"] if "in step" in text)
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
            "lines of output": self.output.count("\n"),
        }

    @property
    def summary(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())


def differences(first: Run, second: Run) -> Iterator[Difference]:
    """Yield where two runs differ, in the order in which it happened; what was written comes last."""
    yield from _differences("calls", [c["name"] for c in first.calls], [c["name"] for c in second.calls])
    for number, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)):
        place = f"{a['name']} {number + 1}" if len(first.calls) > 1 else a["name"]
        yield from _different_hooks(place, a["hooks"], b["hooks"])
        yield from _differences(f"{place}, result", a.get("result"), b.get("result"))
        # By their order: names that Keras makes up count what a process has made.
        mine, theirs = first.variables[number], second.variables[number]
        yield from _differences(f"{place}, number of variables", len(mine), len(theirs))
        for path, value, other in zip(a.get("variables", ()), mine, theirs, strict=False):
            yield from _differences(f"{place}, variable {path}", value, other)
        kinds = ([kind for kind, _ in call["callbacks"]] for call in (a, b))
        yield from _differences(f"{place}, callbacks", *kinds)
        for (kind, state), (same, other) in zip(a["callbacks"], b["callbacks"], strict=False):
            if kind != same:
                break
            yield from _differences(f"{place}, {kind}", state, other)
    yield from _differences("error", first.error, second.error)
    yield from _differences("file", first.files, second.files)
    lines = [run.output.splitlines() for run in (first, second)]
    yield from _differences("line of output", *map(_numbered, lines))


def _different_hooks(place: str, first: Sequence[Any], second: Sequence[Any]) -> Iterator[Difference]:
    """Yield where the hooks of a call differ, by epoch."""
    names = [[f"{hook}({'' if n is None else n})" for hook, n, _ in calls] for calls in (first, second)]
    for number, (a, b) in enumerate(itertools.zip_longest(*names, fillvalue="nothing")):
        if a != b:
            yield Difference(f"{place}, call {number + 1} of callbacks", a, b, math.inf)
            return
    epoch = 0
    for (hook, number, logs), (_, _, others) in zip(first, second, strict=True):
        epoch = epoch if number is None else number + 1
        yield from _differences(f"{place}, epoch {epoch}, {hook}", logs, others)


def _differences(place: str, first: Any, second: Any) -> Iterator[Difference]:
    """Yield where two trees of plain values and arrays differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            here = f"{place} {key}"
            if key in first and key in second:
                yield from _differences(here, first[key], second[key])
            else:
                mine, theirs = ("there" if key in values else "missing" for values in (first, second))
                yield Difference(here, mine, theirs, math.inf)
    elif isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            yield Difference(f"{place}, number of entries", len(first), len(second), math.inf)
        for number, (a, b) in enumerate(zip(first, second, strict=False)):
            yield from _differences(f"{place} [{number}]", a, b)
    elif isinstance(first, str) and isinstance(second, str):
        yield from _different_texts(place, first, second)
    else:
        size = _size(first, second)
        if size:
            yield Difference(place, first, second, size)


def _different_texts(place: str, first: str, second: str) -> Iterator[Difference]:
    """Yield a difference for each number in which two texts differ, or one for their words."""
    if first == second:
        return
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        yield Difference(place, first, second, math.inf)
        return
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    for number, (a, b) in enumerate(pairs):
        if size := _size(float(a), float(b)):
            yield Difference(f"{place}, number {number + 1}", a, b, size)


def _size(first: Any, second: Any) -> float:
    """Return by how much two values differ: 0 if they are equal bit for bit, inf where it is no rounding."""
    kinds = (float, np.ndarray)
    if not isinstance(first, kinds) or not isinstance(second, kinds):
        return 0.0 if type(first) is type(second) and first == second else math.inf
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if a.tobytes() == b.tobytes():
        return 0.0
    if a.dtype.kind not in "fc" and a.dtype.name != "bfloat16":
        return math.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return math.inf
    with np.errstate(invalid="ignore"):
        apart = np.nanmax(np.abs(a - b), initial=0.0)
    largest = max(np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values)) for values in (a, b))
    return float(apart / largest) if largest else 0.0


def _content(path: Path) -> Any:
    """Return what of a file can be compared: text, arrays, or the parts of an archive."""
    return _content_of(path.name, path.read_bytes())


def _content_of(name: str, data: bytes) -> Any:
    suffix = Path(name).suffix
    if suffix in (".npz", ".npy"):
        return _arrays(data) if suffix == ".npz" else np.load(io.BytesIO(data), allow_pickle=False)
    if suffix in (".h5", ".hdf5"):
        return _datasets(data)
    if zipfile.is_zipfile(io.BytesIO(data)):  # such as a model of Keras's
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {member: _content_of(member, archive.read(member)) for member in archive.namelist()}
    if len(data) <= _LARGEST_TEXT:
        try:
            return _numbered(data.decode().splitlines())
        except UnicodeDecodeError:
            pass
    return None  # of a format of its own, such as a log of TensorBoard


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _datasets(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an HDF5 file by their paths."""
    import h5py  # type: ignore[import-untyped]

    values: dict[str, np.ndarray] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            values[name] = item[()]

    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(note)
    return values


def _numbered(lines: Sequence[str]) -> dict[str, str]:
    return {str(number + 1): line for number, line in enumerate(lines)}


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
