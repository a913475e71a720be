"""The directory through which a training and its evaluator meet: weights go in, results come back.

Each file has the layout of a checkpoint, so every byte is checked and nothing is unpickled, and takes its
place in one rename. Its name says what it holds, for which epoch of which run; the number counts up over all
runs of the directory, so that of two files for one epoch the higher number counts:

    run.otck                              the present run; at its end the history and the last weights
    weights-000012-epoch-000004-RUN.otck  the weights behind an epoch
    inside-000013-epoch-000005-RUN.otck   the weights inside one, for `ValidationPolicy(every_steps=...)`
    result-000012-epoch-000004-RUN.otck   what came of the weights of that number
    training.sign, evaluator.sign         written anew each second while the process lives

The training deletes; the evaluator evaluates whatever has no result yet, so it can be lost and started again.
A sign is judged by its change in the reader's own time: the clocks of two hosts need not agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy.typing as npt

from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.fingerprints import describe_layers, numbered
from overlap_train._checkpoint.store import DirectoryLock
from overlap_train._keras import models as keras_models
from overlap_train._snapshot import ModelState, Values
from overlap_train._support.closing import Closing
from overlap_train._support.encoding import array_of, encoded
from overlap_train._support.files import read_regular, replace_content
from overlap_train._support.threads import start
from overlap_train.errors import CheckpointCorruptError, CheckpointError

_NAME = re.compile(r"(weights|inside|result)-([0-9]{6,18})-epoch-([0-9]{6,18})-([0-9a-f]{16})\.otck")
_LEFTOVER = re.compile(r"\.(weights|inside|result|run)\b.*-[0-9a-f]{16}\.otck")
_LONGEST_SIGN = 200
_BEAT_S = 1.0
LEAST_WAIT_S = 3 * _BEAT_S
_LOOKS_S = (0.01, 0.2)  # from one look at the directory to the next


def until_next_look(quiet_s: float) -> float:
    """Return after how many seconds to look at a directory again, in which nothing has come for so long."""
    shortest_s, longest_s = _LOOKS_S
    return min(max(shortest_s, quiet_s / 10), longest_s)


class Entry(NamedTuple):
    """A file of weights or of a result."""

    kind: str
    number: int
    epoch: int
    run: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.kind}-{self.number:06d}-epoch-{self.epoch:06d}-{self.run}.otck"


class Run(NamedTuple):
    """The training that writes into a directory, or wrote there last."""

    id: str
    ended: str | None = None  # as `Trainer.ended`; None while it trains, and for good where it was killed
    epochs: Sequence[int] = ()  # of its history, once it has ended
    history: Mapping[str, Any] = {}
    weights: Mapping[str, npt.NDArray[Any]] = {}  # the last ones, by name


class RunDirectory:
    """The files of one training and its evaluator, in a folder beside the checkpoints. Any thread."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(directory)) / "evaluator"

    def make(self) -> None:
        """Make the folder, or raise CheckpointError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be made for the evaluator: {error}. Give another directory."
            ) from error

    def entries(self, *kinds: str) -> list[Entry]:
        """Return the files of some kinds, by their numbers."""
        matches = filter(None, map(_NAME.fullmatch, os.listdir(self.path)))
        entries = [Entry(m[1], int(m[2]), int(m[3]), m[4]) for m in matches if m[1] in kinds]
        return sorted(entries, key=lambda entry: entry.number)

    def write(self, entry: Entry, state: CheckpointState) -> None:
        """Write a file atomically, or raise OSError."""
        state = replace(state, meta={**state.meta, "file": entry.name})
        container.write(self.path / entry.name, container.encode(state))

    def answer(self, entry: Entry, results: Mapping[str, Any], error: str | None) -> None:
        """Write the results for weights, atomically, or raise OSError."""
        meta = {"results": dict(results), "error": error}
        self.write(entry._replace(kind="result"), CheckpointState(entry.epoch, 0, meta=meta))

    def read(self, entry: Entry) -> CheckpointState:
        """Read a file and verify every byte of it, or raise CheckpointError."""
        state = container.read(self.path / entry.name)
        if state.meta.get("file") != entry.name:
            raise CheckpointCorruptError(f"{self.path / entry.name} is the file of another validation.")
        return state

    def remove(self, *entries: Entry) -> None:
        """Delete files; one that cannot be deleted now is deleted with later ones."""
        for entry in entries:
            with contextlib.suppress(OSError):
                os.unlink(self.path / entry.name)

    def remove_leftovers(self) -> None:
        """Delete files that a kill has left half written."""
        for path in self.path.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def write_run(self, run: Run) -> None:
        """Write which run writes here, or raise OSError."""
        meta = {**run._asdict(), "epochs": list(run.epochs), "weights": len(run.weights)}
        state = CheckpointState(0, 0, run.weights, meta)
        container.write(self.path / "run.otck", container.encode(state))

    def read_run(self) -> Run | None:
        """Return the run that writes or wrote here, or None; raise CheckpointError if that is damaged."""
        path = self.path / "run.otck"
        if not path.exists():
            return None
        state = container.read(path)
        return Run(**{**state.meta, "weights": state.arrays})


def named_weights(model: keras.Model, state: ModelState) -> tuple[list[str], str]:
    """Return the names of `state.weights`, and all in words, in an order that no `trainable` changes.

    A name is a path, with a number if it is not the only one.
    """
    variables = model.variables
    handles = [id(keras_models.variable_handles(variable)[0]) for variable in variables]
    paths = dict(zip(handles, numbered(variable.path for variable in variables), strict=True))
    names = [paths.get(id(weight.handles[0]), weight.name) for weight in state.weights]
    texts = [f"{n} {w.shape} {w.dtype.name}" for n, w in zip(names, state.weights, strict=True)]
    return names, ", ".join(sorted(texts))


def described(model: keras.Model) -> dict[str, str]:
    """Return what has to be the same of a model in the training and in the evaluator, but for its weights.

    Call it before anything is traced, which may set attributes of layers.
    """
    structure = ", ".join(type(layer).__name__ for layer in keras_models.flat_layers(model))
    settings = {k: v for k, v in describe_layers(model).items() if not k.endswith(".trainable")}
    return {"structure of the model": structure, **settings}


class RunWriter:
    """Writes the files of one training, one thread at a time.

    From `open` until it is left it locks them and gives signs of life.
    """

    def __init__(
        self, path: str | os.PathLike[str], model: keras.Model, validation: Mapping[str, str]
    ) -> None:
        """Touch nothing before `open`; `validation` is what has to be the same of the evaluator's."""
        self.directory = RunDirectory(path)
        self._model = model
        self._described = {**described(model), **validation}
        self._names: list[str] = []
        self._run = Run(secrets.token_hex(8))  # an id that no other has
        self._lock = DirectoryLock(self.directory.path)
        self._sign: Sign | None = None
        self._number = 0

    def take(self, state: ModelState) -> None:
        """Take the variables of the snapshots that follow."""
        self._names, self._described["weights"] = named_weights(self._model, state)

    def arrays_of(self, values: Values) -> dict[str, npt.NDArray[Any]]:
        """Return the weights of a snapshot by name, without a copy where the host's memory holds them."""
        weights = [*values.trainable, *values.non_trainable]
        return {name: array_of(value) for name, value in zip(self._names, weights, strict=True)}

    def open(self) -> None:
        """Say in the directory that this run has begun, or raise CheckpointError."""
        directory = self.directory
        directory.make()
        try:
            self._lock.acquire()
            directory.remove_leftovers()
            self.forget(*directory.entries("inside"))
            directory.write_run(self._run)
        except OSError as error:
            self._lock.release()
            raise self._cannot_write(error) from error
        self._number = max((entry.number for entry in directory.entries("weights")), default=0)
        self._sign = Sign(directory, "training", "evaluator")

    def seen_s(self) -> float:
        """Return when an evaluator last gave a sign of life, by `time.monotonic()`; 0 if never."""
        return 0.0 if self._sign is None else self._sign.seen_s()

    def next(self, kind: str, epoch: int) -> Entry:
        """Return the name of the next file of weights."""
        self._number += 1
        return Entry(kind, self._number, epoch, self._run.id)

    def write(self, entry: Entry, step: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write weights atomically, or raise CheckpointError."""
        state = CheckpointState(entry.epoch, step, arrays, fingerprint=dict(self._described))
        try:
            if entry.kind == "weights":  # others of such epochs were rolled back, or are of an older run
                self.forget(*(e for e in self.directory.entries("weights") if e.epoch >= entry.epoch))
            self.directory.write(entry, state)
        except OSError as error:
            raise self._cannot_write(error) from error

    def forget(self, *entries: Entry) -> None:
        """Delete weights and then their results, with all results whose weights are gone."""
        self.directory.remove(*entries)
        left = {entry[1:] for entry in self.directory.entries("weights", "inside")}
        self.directory.remove(*(e for e in self.directory.entries("result") if e[1:] not in left))

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say how the training ended; one that failed says nothing, like one that was killed."""
        try:
            if kind is None:
                self._end()
        except OSError as error:
            warnings.warn(f"the evaluator is not told of the end: {error}", RuntimeWarning, stacklevel=2)
        finally:
            if self._sign is not None:
                self._sign.close()
            self._lock.release()

    def _end(self) -> None:
        history = self._model.history
        last = max(history.epoch, default=-1)
        ahead = [each for each in self.directory.entries("weights") if each.epoch > last]
        self.forget(*ahead, *self.directory.entries("inside"))  # rolled back, or not waited for
        state = ModelState(self._model, trains=False)
        self.take(state)
        ended, logs = getattr(history, "ended", "completed"), json.loads(encoded(history.history))
        self.directory.write_run(
            self._run._replace(
                ended=ended, epochs=history.epoch, history=logs, weights=self.arrays_of(state.read())
            )
        )

    def _cannot_write(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.directory.path} cannot be written for the evaluator: {error}")


class Sign(Closing):
    """Says each second, on a thread of its own, that this process lives, and sees whether the other does."""

    def __init__(self, directory: RunDirectory, name: str, other: str) -> None:
        self._path, self._other = directory.path / f"{name}.sign", directory.path / f"{other}.sign"
        self._last = self._read()  # which may be of a process that is gone
        self._changed_s = 0.0
        self._over = threading.Event()
        self._thread = start(threading.Thread(target=self._beat, name=f"overlap-{name}-sign", daemon=True))

    def seen_s(self) -> float:
        """Return when the other's sign was last seen to change, by `time.monotonic()`; 0 if never."""
        text = self._read()
        if text not in (self._last, b""):
            self._last, self._changed_s = text, time.monotonic()
        return self._changed_s

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._over.set()
        self._thread.join()

    def _read(self) -> bytes:
        try:
            return read_regular(self._other, most_bytes=_LONGEST_SIGN)
        except OSError:
            return b""

    def _beat(self) -> None:
        name, beats = secrets.token_hex(8), 0
        while not (beats and self._over.wait(_BEAT_S)):
            with contextlib.suppress(OSError):  # the disk may be full now and not later
                replace_content(self._path, f"{name} {beats}\n")
            beats += 1
