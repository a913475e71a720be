"""What two runs of a script have in common: their calls, logs, variables, callbacks, files and output."""

from __future__ import annotations

import dataclasses
import hashlib
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

__all__ = ["ARRAY", "Difference", "Run", "differences"]

ARRAY = "values of an array"  # as `recording` writes them

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Parts of a file's name that a run makes up: times, process ids, hashes.
_MADE_UP = re.compile(r"\d{4,}")
_LARGEST_TEXT = 5_000_000  # bytes
_DATED = "metadata.json"  # in a model of Keras's
_SMALLEST = 1e-300  # size of a difference in bits alone, as of a signed zero


@dataclass(frozen=True)
class Difference:
    """One place where two runs differ; `size` is relative, and infinite for what is no number."""

    place: str
    first: Any
    second: Any
    size: float
    decides: bool = False  # of a log, a result or a variable: a program with a seed has it again

    def __str__(self) -> str:
        if isinstance(self.first, np.ndarray):
            return self.place
        return f"{self.place}: {_short(self.first)} by Keras, {_short(self.second)} overlapped"


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

    @classmethod
    def read(cls, directory: Path, written: Sequence[Path]) -> Run:
        """Read what a process of `recording` has left."""
        try:
            record = json.loads((directory / "calls.json").read_text())
        except FileNotFoundError:
            record = {"calls": [], "error": "the process ended before its script did", "refused": None}
        variables = []
        for number in range(len(record["calls"])):
            path = directory / f"{number}.npz"
            variables.append(list(_arrays(path.read_bytes()).values()) if path.exists() else [])
        work = directory / "work"
        files = {str(path.relative_to(work)): _content(path) for path in written}
        output = (directory / "output").read_bytes().decode(errors="replace").replace(str(directory), "")
        error = record["error"] and record["error"].replace(str(directory), "")
        calls = [_with_arrays(call) for call in record["calls"]]
        return cls(directory, calls, error, variables, files, output, record["refused"])

    @property
    def fit_seconds(self) -> float:
        """The seconds in all calls of `fit`."""
        return float(sum(call["seconds"] for call in self.calls if call["name"] == "fit"))

    @property
    def fit_cpu_seconds(self) -> float:
        """The seconds for which cores were busy in all calls of `fit`."""
        return float(sum(call["cpu_seconds"] for call in self.calls if call["name"] == "fit"))

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
            "lines of output": len(self.lines),
        }

    @property
    def lines(self) -> list[str]:
        """The lines printed, without those that were drawn over: such a bar shows how long a step took."""
        lines = self.output.removesuffix("\n").split("\n") if self.output else []
        return [line for line in lines if not {"\r", "\b"}.intersection(line.removesuffix("\r"))]

    @property
    def summary(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())


def differences(first: Run, second: Run) -> Iterator[Difference]:
    """Yield where two runs differ, in the order in which it happened; what was written comes last."""
    yield from _differences("calls", [c["name"] for c in first.calls], [c["name"] for c in second.calls])
    for number, (a, b) in enumerate(zip(first.calls, second.calls, strict=False)):
        place = f"{a['name']} {number + 1}" if len(first.calls) > 1 else a["name"]
        for found in _different_results(place, a, b, first.variables[number], second.variables[number]):
            yield dataclasses.replace(found, decides=True)
        kinds = ([kind for kind, _ in call["callbacks"]] for call in (a, b))
        yield from _differences(f"{place}, callbacks", *kinds)
        for (kind, state), (same, other) in zip(a["callbacks"], b["callbacks"], strict=False):
            if kind != same:
                break
            yield from _differences(f"{place}, {kind}", state, other)
    yield from _differences("error", first.error, second.error)
    yield from _differences("file", *_named_alike(first.files, second.files))
    yield from _differences("line of output", _numbered(first.lines), _numbered(second.lines))


def _different_results(
    place: str,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    variables: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
) -> Iterator[Difference]:
    """Yield where the logs, the result and the variables of a call differ."""
    yield from _different_hooks(place, first["hooks"], second["hooks"])
    yield from _differences(f"{place}, result", first.get("result"), second.get("result"))
    # By their order: names that Keras makes up count what a process has made.
    yield from _differences(f"{place}, number of variables", len(variables), len(others))
    for path, value, other in zip(first.get("variables", ()), variables, others, strict=False):
        yield from _differences(f"{place}, variable {path}", value, other)


def _named_alike(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the files of two runs; names that only one has are without times and process ids, in order."""
    both = []
    for files, others in ((first, second), (second, first)):
        alike = {name: content for name, content in files.items() if name in others}
        made_up: dict[str, list[Any]] = {}
        for name in sorted(set(files) - set(others)):
            made_up.setdefault(_MADE_UP.sub("#", name), []).append(files[name])
        both.append({**alike, **made_up})
    return both[0], both[1]


def _different_hooks(place: str, first: Sequence[Any], second: Sequence[Any]) -> Iterator[Difference]:
    """Yield where the hooks of a call differ, by epoch."""
    names = [[f"{hook}({'' if n is None else n})" for hook, n, _ in calls] for calls in (first, second)]
    for number, (a, b) in enumerate(itertools.zip_longest(*names, fillvalue="nothing")):
        if a != b:
            yield Difference(f"{place}, call {number + 1} of callbacks", a, b, math.inf)
            return
    ends = [n + 1 for _, n, _ in first if n is not None]  # the epochs, by when they end
    for (hook, number, logs), (_, _, others) in zip(first, second, strict=True):
        where = f"epoch {ends[0]}, {hook}" if ends else hook
        yield from _differences(f"{place}, {where}", logs, others)
        ends = ends if number is None else ends[1:]


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
        whole = a.lstrip("+-").isdigit() and b.lstrip("+-").isdigit()
        if size := math.inf if whole and a != b else _size(float(a), float(b)):
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
    if a.dtype.kind not in "fc":
        return math.inf
    finite = np.isfinite(a)
    if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return math.inf
    apart = np.max(np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), initial=0.0)
    largest = max(np.max(np.abs(values), initial=0.0, where=finite) for values in (a, b))
    return max(float(apart / largest) if largest else 0.0, _SMALLEST)


def _content(path: Path) -> Any:
    """Return what of a file can be compared: text, arrays, the parts of an archive, or else its digest."""
    data = path.read_bytes()
    try:
        content = _content_of(path.name, data)
    except Exception:  # of a format that its name does not tell, or damaged
        content = None
    return content if content is not None else f"digest {hashlib.sha256(data).hexdigest()}"


def _content_of(name: str, data: bytes) -> Any:
    suffix = Path(name).suffix
    if suffix in (".npz", ".npy"):
        return _arrays(data) if suffix == ".npz" else np.load(io.BytesIO(data), allow_pickle=False)
    if suffix in (".h5", ".hdf5"):
        return _datasets(data)
    if zipfile.is_zipfile(io.BytesIO(data)):  # such as a model of Keras's
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name != _DATED]
            return {name: _content_of(name, archive.read(name)) for name in names}
    if len(data) <= _LARGEST_TEXT:
        try:
            return _numbered(data.decode().splitlines())
        except UnicodeDecodeError:
            pass
    return None  # of a format of its own, such as a log of TensorBoard


def _with_arrays(value: Any) -> Any:
    """Return what `recording` wrote with its arrays."""
    if isinstance(value, dict):
        if ARRAY in value:
            return np.array(value[ARRAY], value["dtype"])
        return {key: _with_arrays(part) for key, part in value.items()}
    return [_with_arrays(part) for part in value] if isinstance(value, list) else value


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
