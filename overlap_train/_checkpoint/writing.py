"""Writing: when a checkpoint is due, what is taken for it, and the thread that writes it.

The training thread hands each state to a writer thread; the next one waits until it is written.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._callbacks.rewind import mark_files, sync_files
from overlap_train._callbacks.state import Settings, Unstored, capture_all
from overlap_train._checkpoint.attributes import ModelAttributes
from overlap_train._checkpoint.content import (
    PythonState,
    ReportedSettings,
    StartPoint,
    as_checkpoint,
    specs_of,
)
from overlap_train._checkpoint.run_directory import RunWriter, arrays_of
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train._copies.values import ObjectValue
from overlap_train._keras.randomness import random_states
from overlap_train._snapshot import InsideEpochs, ModelState, Values
from overlap_train._support.closing import Closing
from overlap_train._support.threads import in_background
from overlap_train.options.checkpoint import CheckpointPolicy
from overlap_train.records import Span

# The part of the fingerprint that says which variables there are, in their order.
ALL_VARIABLES = "the order and number of all variables"

_WIDE = (np.float32, np.float64)

# The name, in the position in the training data, of the passes over the validation data.
VALIDATION_PASSES = "validated"


class Passes(Protocol):
    """Tells how far validations have drawn their data, and gets there; see `ValidationPasses`."""

    def standing(self) -> dict[str, Any]:
        """Return how far, in values for a checkpoint."""

    def go_on(self, standing: Any, /) -> None:
        """Draw as far as another process had."""


class CheckpointWriter(Closing):
    """Writes the checkpoints of one `fit`, into a directory that it locks. Belongs to the training thread.

    `weights` keeps the weights of all epochs. `trained_by` returns the function that trains; once it is
    another than at the start, nothing more is written. `say` gets messages about what no checkpoint will
    hold. `record` gets the span of each write, on the thread that writes.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        belongs_to: Mapping[str, str],
        variables: ModelState,
        *,
        attributes: ModelAttributes | None = None,
        reported: ReportedSettings | None = None,
        weights: RunWriter | None = None,
        trained_by: Callable[[], Any] = lambda: None,
        say: Callable[[str], None] = lambda message: None,
        record: Callable[[Span], None] = lambda span: None,
    ) -> None:
        self._policy = policy
        self._variables = variables
        self._handles = {id(handle) for variable in variables.variables for handle in variable.handles}
        specs = [f"{shape} {dtype}" for shape, dtype in specs_of(variables)]
        digest = hashlib.sha256(repr([*belongs_to, *specs]).encode()).hexdigest()
        self._fingerprint = {**belongs_to, ALL_VARIABLES: f" digest {digest[:16]}"}
        self._reported = reported or ReportedSettings()
        self._trained_by, self._function = trained_by, trained_by()
        self._say = say
        self._record = record
        self._attributes = attributes
        self._weights = weights
        self._inside: Callable[[], InsideEpochs] = InsideEpochs
        self._plan: Callable[[], str] = str
        self._passes: Passes | None = None
        self._standing: dict[str, Any] = {}  # of the passes
        self._lags: tuple[int, ...] = ()
        self._files: dict[int, str] = {}
        self._settings = Settings(())
        self._unstored = Unstored()
        self._deliveries = 0
        self._written_s, self._written_step = time.monotonic(), 0
        self._ceased = False
        self._writing: Future[None] | None = None
        self._store = CheckpointStore(policy.directory, policy.keep)
        self._store.acquire()

    def watch(self, inside: Callable[[], InsideEpochs]) -> None:
        """Take the function that returns how the validations inside epochs stand."""
        self._inside = inside

    def watch_plan(self, plan: Callable[[], str]) -> None:
        """Take the function that returns how the steps are computed."""
        self._plan = plan

    def watch_passes(self, passes: Passes) -> None:
        """Take the passes over the validation data, from which nothing has been drawn yet."""
        self._passes = passes
        self._note_passes()

    def steps_left(self, step: int) -> int | None:
        """Return how many steps may follow `step` before a checkpoint is due; None if any."""
        every = self._policy.every_steps
        return None if every is None else every - step % every

    def due_inside(self, step: int) -> bool:
        """Whether a checkpoint inside an epoch is due after `step` steps."""
        every = self._policy.every_steps
        return every is not None and step // every > self._written_step // every and self._is_interval_over()

    def inside(
        self,
        point: StartPoint,
        values: Values,
        callbacks: Iterable[keras.callbacks.Callback],
    ) -> None:
        """Write a checkpoint of where the training stands, unless one of this step has been written.

        A CheckpointError says that an earlier one could not be.
        """
        if not point.undelivered:  # the oldest, which will be validated again, may have drawn already
            self._note_passes()
        if point.step != self._written_step:
            self._write_behind(self._checkpoint(point, values, callbacks))

    def delivered(
        self,
        point: StartPoint,
        values: Values,
        callbacks: Iterable[keras.callbacks.Callback],
        *,
        last: bool,
        trained: Values | None = None,
    ) -> None:
        """Write a checkpoint if one is due, or if this delivery is the last.

        The weights of the epoch, `trained`, come first if they are kept: where a kill leaves them without the
        checkpoint, the epoch is trained again and they are written again. A CheckpointError says that an
        earlier file could not be written.
        """
        self._deliveries += 1
        self._note_passes()
        self._lags = (*self._lags[-1:], point.max_lag)
        # A checkpoint inside a later epoch holds the snapshot of this one.
        newer = point.step > self._written_step
        due = newer and self._deliveries % self._policy.every_epochs == 0 and self._is_interval_over()
        writes: list[Callable[[], Any]] = []
        if self._weights is not None and trained is not None:
            entry = self._weights.next("weights", point.epoch - 1)
            arrays = self._kept(arrays_of(trained))
            writes.append(functools.partial(self._weights.write, entry, point.step, arrays))
        if due or last:
            writes += self._checkpoint(point, values, callbacks)
        self._write_behind(writes)

    def _kept(self, weights: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        if self._policy.keep_weights == "all":
            return weights
        return {n: w.astype(np.float16) if w.dtype in _WIDE else w for n, w in weights.items()}

    def _note_passes(self) -> None:
        if self._passes is not None:
            self._standing = self._passes.standing()

    def _is_interval_over(self) -> bool:
        """Whether the last checkpoint was long enough ago."""
        every_s = self._policy.every_s
        return every_s is None or time.monotonic() - self._written_s >= every_s

    def _checkpoint(
        self,
        point: StartPoint,
        values: Values,
        callbacks: Iterable[keras.callbacks.Callback],
    ) -> list[Callable[[], Any]]:
        """Take what belongs into a checkpoint; return what writes it, if it may be written."""
        self._written_s, self._written_step = time.monotonic(), point.step
        self.wait()
        if self._is_recompiled():
            return []
        if self._standing:
            data = {**point.position.data, VALIDATION_PASSES: self._standing}
            point = replace(point, position=replace(point.position, data=data))
        python = PythonState(
            callbacks=self._captured(callbacks),
            files=mark_files(self._files),
            random=random_states(self._handles),
            in_turn=not any(self._lags),
            inside=self._inside(),
            attributes=self._attributes.changed() if self._attributes is not None else {},
            callback_settings=self._settings.records(),
            plan=self._plan(),
        )
        return [functools.partial(self._write, point, values, python)]

    def _write_behind(self, writes: Sequence[Callable[[], Any]]) -> None:
        """Have a thread write one after another, once it has written what it was given before."""

        def work() -> None:
            for write in writes:
                write()

        if writes:
            self.wait()
            self._writing = Future()
            in_background(work, "overlap-checkpoint", daemon=True, future=self._writing)

    def _is_recompiled(self) -> bool:
        """Whether a callback has compiled the model since the training began.

        No file holds what is compiled, and a resumed fit calls that hook again only if it begins before it.
        """
        if not self._ceased and self._trained_by() is not self._function:
            self._ceased = True
            self._say(
                "no further checkpoints are written: a callback has compiled the model or made its train "
                "function anew, and a resumed fit has to begin before that"
            )
        return self._ceased

    def _captured(self, callbacks: Iterable[keras.callbacks.Callback]) -> tuple[ObjectValue, ...]:
        """Return what callbacks remember; name each attribute that no checkpoint holds, once."""
        callbacks = list(callbacks)
        states = capture_all(callbacks)
        self._say_unstored(states, callbacks)
        return states

    def _say_unstored(
        self, states: Sequence[ObjectValue], callbacks: Iterable[keras.callbacks.Callback] = ()
    ) -> None:
        names = self._unstored.names(states, callbacks)
        if names:
            self._say(
                "a resumed fit takes these attributes of its callbacks as they then are: "
                f"{', '.join(names)}; what they hold cannot be stored (get_state and set_state would say "
                "what can)"
            )

    def wait(self) -> None:
        """Wait for the writer, and raise what it raised."""
        if self._writing is not None:
            wait([self._writing])  # after a KeyboardInterrupt here it is still being written
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Let the writer finish and unlock the directory. Idempotent."""
        if self._writing is not None and self._writing.exception() is not None:
            warnings.warn(str(self._writing.exception()), RuntimeWarning, stacklevel=2)
        self._writing = None
        self._store.close()

    def close_now(self) -> None:
        """Return at once; the directory is unlocked when the writer has finished."""
        if self._writing is None:
            self._store.close()
        else:
            self._writing.add_done_callback(lambda _: self._store.close())

    def _write(self, point: StartPoint, values: Values, python: PythonState) -> None:
        start_s, thread = time.monotonic(), threading.current_thread().name
        sync_files(python.files)
        self._store.save(as_checkpoint(point, values, python, self._reported, self._fingerprint))
        self._record(Span("checkpoint", thread, start_s, time.monotonic(), step=point.step))
