"""What two runs of a script have in common: their calls, logs, variables, callbacks, files and output."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overlap_train._support.differences import (
    ARRAY,
    ENDED,
    Difference,
    deciding,
    differences_of,
    different_calls,
)
from overlap_train.records import TIMELINE

__all__ = ["Run", "differences"]

# Parts of a file's name that a run makes up: times, process ids, hashes.
_MADE_UP = re.compile(r"\d{4,}")
_LARGEST_TEXT = 5_000_000  # bytes
_DATED = "metadata.json"  # in a model of Keras's


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
            numbers = sorted(int(path.stem) for path in directory.glob("*.json"))
            record = {"calls": numbers, "error": f"{ENDED} the process", "refused": None}
        paths = [directory / f"{number}.json" for number in record["calls"]]
        calls = [_with_arrays(json.loads(path.read_text())) for path in paths if path.exists()]
        arrays = [path.with_suffix(".npz") for path in paths if path.exists()]
        variables = [list(_arrays(path.read_bytes()).values()) if path.exists() else [] for path in arrays]
        work = directory / "work"
        files = {str(path.relative_to(work)): _content(path) for path in written}
        output = (directory / "output").read_bytes().decode(errors="replace").replace(str(directory), "")
        error = record["error"] and record["error"].replace(str(directory), "")
        return cls(directory, calls, error, variables, files, output, record["refused"])

    @property
    def fit_seconds(self) -> float:
        """The seconds in all calls of `fit`."""
        return float(sum(call["seconds"] for call in self._fits))

    @property
    def fit_cpu_seconds(self) -> float:
        """The seconds for which cores were busy in all calls of `fit`."""
        return float(sum(call["cpu_seconds"] for call in self._fits))

    @property
    def _fits(self) -> list[Mapping[str, Any]]:
        return [call for call in self.calls if call["name"] == "fit" and not call.get("within")]

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
        """The lines printed, without those that were drawn over: such a bar shows how long a step took."""
        lines = self.output.removesuffix("\n").split("\n") if self.output else []
        return [line for line in lines if not {"\r", "\b"}.intersection(line.removesuffix("\r"))]

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
    yield from differences_of("file", *_named_alike(first.files, second.files))
    yield from differences_of("line of output", _numbered(first.lines), _numbered(second.lines))


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


def _content(path: Path) -> Any:
    """Return what of a file can be compared: text, arrays, the parts of an archive, or else its digest."""
    data = path.read_bytes()
    if TIMELINE.encode() in data:
        return TIMELINE  # what the trainer did when, which a fit by Keras leaves empty
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
