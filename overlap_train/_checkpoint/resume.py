"""Resuming: after each delivery the training can go on from disk as if it had never been killed (C8).

A checkpoint is the state right after the callbacks of an epoch's end, with the weights that they saw or
set: what ran ahead of it, training and pending validations alike, is done again by the resumed run, from the
same weights, random state and position in the data. Or it is the state between two steps, when no epoch waits
for its callbacks.

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
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._callbacks.rewind import append_to_files, files_of, mark_files, rewind_files
from overlap_train._callbacks.state import Settings, Unstored, capture_all, restore_all
from overlap_train._callbacks.values import ObjectValue
from overlap_train._checkpoint.attributes import plain_attributes
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.content import (
    LoadedCheckpoint,
    StartPoint,
    as_checkpoint,
    specs_of,
    take_apart,
)
from overlap_train._checkpoint.fingerprints import differences, listed_differences, rate_text
from overlap_train._checkpoint.run_directory import RunWriter
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train._data.cursor import Cursor
from overlap_train._keras.randomness import random_states, set_random_states
from overlap_train._snapshot import ModelState, Values
from overlap_train._support.closing import Closing
from overlap_train._support.printing import error_text
from overlap_train._support.threads import in_background
from overlap_train.errors import CheckpointMismatchError
from overlap_train.options.checkpoint import CheckpointPolicy
from overlap_train.records import Span

# The part of the fingerprint that says which variables there are, in their order.
_ALL_VARIABLES = "the order and number of all variables"
# The name, in the position in the training data, of the passes over the validation data.
_VALIDATION_PASSES = "validated"
_WIDE = (np.float32, np.float64)


class Resumer(Closing):
    """Writes the checkpoints of one `fit` and starts it from the newest. Belongs to the training thread.

    Making it locks the directory and reads the newest sound checkpoint in it. CheckpointCorruptError means
    that all are damaged, CheckpointMismatchError that the newest sound one belongs to another model, data or
    history.

    `configuration` has settings that may differ when a training goes on, of which the user is told.
    `passes` are the `ValidationPasses`, from which nothing has been drawn yet. `weights` keeps the weights
    of all epochs. `say` gets messages about what no checkpoint will hold. `record` gets the span of each
    write, on the thread that writes. `plan` returns how the steps are computed. Once the model has another
    train function than at the start, nothing more is written.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        model: keras.Model,
        belongs_to: Mapping[str, str],
        variables: ModelState,
        *,
        configuration: Mapping[str, str] | None = None,
        passes: Any = None,
        weights: RunWriter | None = None,
        say: Callable[[str], None] = lambda message: None,
        record: Callable[[Span], None] = lambda span: None,
    ) -> None:
        self._policy = policy
        self._model = model
        self._handles = {id(handle) for variable in variables.variables for handle in variable.handles}
        specs = [f"{shape} {dtype}" for shape, dtype in specs_of(variables)]
        digest = hashlib.sha256(repr([*belongs_to, *specs]).encode()).hexdigest()
        self._fingerprint = {**belongs_to, _ALL_VARIABLES: f" digest {digest[:16]}"}
        self._configuration = configuration or {}
        self._function = model.train_function
        self._say = say
        self._record = record
        self._set_before = plain_attributes(model)
        self._weights = weights
        self.plan: Callable[[], str] = str
        self._passes = passes
        self._standing: dict[str, Any] = {}  # of the passes
        self._note_passes()
        self._lags: tuple[int, ...] = ()
        self._callbacks: Sequence[keras.callbacks.Callback] = ()
        self._files: Iterable[str] = ()
        self._settings = Settings(())
        self._unstored, self._said = Unstored(), set[str]()
        self._deliveries = 0
        self._written_s, self._written_step = time.monotonic(), 0
        self._ceased = False
        self._writing: Future[None] | None = None
        self._store = CheckpointStore(policy.directory, policy.keep)
        self._appending: list[keras.callbacks.CSVLogger] = []
        self._store.acquire()
        try:
            check = functools.partial(take_apart, variables=variables, require_same=self._require_same)
            self._newest: LoadedCheckpoint | None = self._store.load_latest(check)
        except BaseException:
            self.close()
            raise

    def take(self, state: ModelState) -> None:
        """Take the variables of the snapshots that follow."""
        if self._weights is not None:
            self._weights.take(state)

    def accept(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Take the callbacks, and match them with the checkpoint's; call it before `on_train_begin`."""
        self._callbacks, self._files, self._settings = callbacks, files_of(callbacks), Settings(callbacks)
        if self._newest is not None and self._newest.state.epoch > 0:  # else logs begin anew, too
            self._appending = append_to_files([callback for callback, _ in self._matches(self._newest)])

    def start(self, state: ModelState, cursor: Cursor, begin_epoch: Callable[..., None]) -> StartPoint | None:
        """Put everything back as the checkpoint has it, if there is one; call it after `on_train_begin`.

        The callbacks' files come last, when nothing can be refused any more. `begin_epoch` calls the
        `on_epoch_begin` of an epoch that goes on: a checkpoint has what callbacks remember and change, but
        not what else they set in Python there.
        """
        self._function = self._model.train_function
        checkpoint, self._newest = self._newest, None
        self._unstored.begin(self._callbacks)
        self._set_before = plain_attributes(self._model)
        if checkpoint is None:
            self._captured()
            return None
        meta, epoch, step = checkpoint.meta, checkpoint.state.epoch, checkpoint.state.step
        values, position = checkpoint.values, checkpoint.position
        drawn = position.data.pop(_VALIDATION_PASSES, {})
        if self._passes is not None:  # which writes to variables that are put back below
            _drawn(self._passes.go_on, drawn)
            self._note_passes()
        if position.within:
            begin_epoch(epoch)
        self._put_callbacks_back(checkpoint)
        self._say_set_on_model(meta["set_on_model"])
        state.restore(values)
        state.restore_pipeline(values)
        self._put_random_back(checkpoint)
        if names := _drawn(cursor.resume, position):
            self._say(f"of the training data these attributes are others than before: {', '.join(names)}")
        if meta["in_turn"] and not position.data.get("begun"):
            self._put_random_back(checkpoint)  # the data has just put back the states that it had drawn from
        self._report_changes(checkpoint)
        rewind_files(self._callbacks, checkpoint.files, epoch)
        self._appending = []
        self._written_step = step
        return StartPoint(epoch, step, meta["stopped"], meta["logs"], position, meta["plan"])

    def _numbers(self, checkpoint: LoadedCheckpoint) -> list[int | None]:
        """Return the number of each callback in a checkpoint, None for a new one."""
        kinds = [state.kind for state in checkpoint.callbacks]
        return self._settings.match(kinds, checkpoint.meta["callback_settings"])

    def _matches(self, checkpoint: LoadedCheckpoint) -> list[tuple[keras.callbacks.Callback, ObjectValue]]:
        """Return the callbacks that a checkpoint has a state of, with that state."""
        pairs = zip(self._settings.callbacks, self._numbers(checkpoint), strict=True)
        return [(callback, checkpoint.callbacks[n]) for callback, n in pairs if n is not None]

    def _put_callbacks_back(self, checkpoint: LoadedCheckpoint) -> None:
        self._say_unstored(checkpoint.callbacks)
        stay = restore_all(self._matches(checkpoint))
        if stay:
            names = ", ".join(stay)
            self._say(f"these attributes of callbacks cannot be restored and keep their values: {names}")

    def _put_random_back(self, checkpoint: LoadedCheckpoint) -> None:
        """Put the global random generators back, once the values of the variables are restored."""
        try:
            set_random_states(checkpoint.meta["random"], self._handles)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise CheckpointMismatchError(
                f"the checkpoint's random states cannot be put back ({error_text(error):.160}); was it "
                "written with other versions of TensorFlow or Keras? Give another directory to start afresh"
            ) from error

    def _report_changes(self, checkpoint: LoadedCheckpoint) -> None:
        meta, numbers = checkpoint.meta, self._numbers(checkpoint)
        new = [type(c).__name__ for c, n in zip(self._settings.callbacks, numbers, strict=True) if n is None]
        if new:
            self._say(f"these callbacks are not in the checkpoint and begin now: {', '.join(new)}")
        missing = [state.kind for n, state in enumerate(checkpoint.callbacks) if n not in numbers]
        if missing:
            self._say(
                "these callbacks of the checkpoint are missing now, and what they remembered is left out: "
                f"{', '.join(missing)}"
            )
        changes = differences(meta["configuration"], self._configuration, rate_text(self._model))
        if changes:
            self._say(
                "this training is configured otherwise than that of the checkpoint: "
                f"{listed_differences(changes)}"
            )

    def _require_same(self, state: CheckpointState, configuration: Mapping[str, str]) -> None:
        """Refuse a training whose history would hold values of two kinds, or that has other variables."""
        before, now = dict(state.fingerprint), dict(self._fingerprint)
        if before == now:
            return
        before = {**before, **configuration, **before}
        now = {**now, **self._configuration, **now}
        changes = differences(before, now)
        # The order of the variables follows from what else differs.
        causes = [change for change in changes if not change.startswith(_ALL_VARIABLES)]
        raise CheckpointMismatchError(
            f"The checkpoints in {self._policy.directory} are of another training. What differs: "
            f"{listed_differences(causes or changes)}. Build the same training, or give another directory to "
            "start afresh."
        )

    def steps_left(self, step: int) -> int | None:
        """Return how many steps may follow `step` before a checkpoint is due; None if any."""
        every = self._policy.every_steps
        return None if every is None else every - step % every

    def due_inside(self, step: int) -> bool:
        """Whether a checkpoint inside an epoch is due after `step` steps."""
        every = self._policy.every_steps
        return every is not None and step // every > self._written_step // every and self._is_interval_over()

    def inside(self, point: StartPoint, values: Values) -> None:
        """Write a checkpoint of where the training stands, unless one of this step has been written.

        A CheckpointError says that an earlier one could not be.
        """
        self._note_passes()
        if point.step != self._written_step:
            self._write_behind(self._checkpoint(point, values))

    def delivered(
        self,
        point: StartPoint,
        values: Values,
        *,
        last: bool,
        max_lag: int = 0,
        trained: Values | None = None,
    ) -> None:
        """Write a checkpoint if one is due, or if this delivery is the last.

        The weights of the epoch, `trained`, come first if they are kept: where a kill leaves them without the
        checkpoint, the epoch is trained again and they are written again. A CheckpointError says that an
        earlier file could not be written.
        """
        self._deliveries += 1
        self._note_passes()
        self._lags = (*self._lags[-1:], max_lag)
        # A checkpoint inside a later epoch holds the snapshot of this one.
        newer = point.step > self._written_step
        due = newer and self._deliveries % self._policy.every_epochs == 0 and self._is_interval_over()
        writes: list[Callable[[], Any]] = []
        if self._weights is not None and trained is not None:
            entry = self._weights.next("weights", point.epoch - 1)
            arrays = self._kept(self._weights.arrays_of(trained))
            writes.append(functools.partial(self._weights.write, entry, point.step, arrays))
        if due or last:
            writes += self._checkpoint(point, values)
        self._write_behind(writes)

    def _kept(self, weights: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        if self._policy.keep_weights == "all":
            return weights
        return {
            name: _narrow(weight) if weight.dtype in _WIDE else weight for name, weight in weights.items()
        }

    def _note_passes(self) -> None:
        if self._passes is not None:
            self._standing = self._passes.standing()

    def _is_interval_over(self) -> bool:
        """Whether the last checkpoint was long enough ago."""
        every_s = self._policy.every_s
        return every_s is None or time.monotonic() - self._written_s >= every_s

    def _checkpoint(self, point: StartPoint, values: Values) -> list[Callable[[], Any]]:
        """Take what belongs into a checkpoint; return what writes it, if it may be written."""
        self._written_s, self._written_step = time.monotonic(), point.step
        self.wait()
        if self._is_recompiled():
            return []
        if self._standing:
            data = {**point.position.data, _VALIDATION_PASSES: self._standing}
            point = replace(point, position=replace(point.position, data=data))
        python = {
            "callbacks": list(self._captured()),
            "files": mark_files(self._files),  # how far callbacks had written theirs
            "random": random_states(self._handles),
            "in_turn": not any(self._lags),  # what a resumed run does again has not drawn from the generators
            "callback_settings": self._settings.texts,
            "set_on_model": sorted(self._said),
            "configuration": self._configuration,
            "plan": self.plan(),
        }
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
        if not self._ceased and self._model.train_function is not self._function:
            self._ceased = True
            self._say(
                "no further checkpoints are written: a callback has compiled the model or made its train "
                "function anew, and a resumed fit has to begin before that"
            )
        return self._ceased

    def _captured(self) -> tuple[ObjectValue, ...]:
        """Return what callbacks remember; name each attribute that no checkpoint holds, once."""
        states = capture_all(self._callbacks)
        self._say_unstored(states, self._callbacks)
        now, before = plain_attributes(self._model), self._set_before
        self._say_set_on_model(name for name in now if before.get(name) != now[name])
        return states

    def _say_set_on_model(self, names: Iterable[str]) -> None:
        """Name the attributes that callbacks have set on the model, each once."""
        names = [name for name in names if name not in self._said]
        self._said.update(names)
        if names:
            listed = ", ".join(names)
            self._say(
                f"these attributes of the model are in no checkpoint: {listed}; keep them in a callback"
            )

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
        """Let the writer finish and unlock the directory; loggers of a refused fit get their setting back."""
        if self._writing is not None and self._writing.exception() is not None:
            warnings.warn(str(self._writing.exception()), RuntimeWarning, stacklevel=2)
        self._writing = None
        self._store.close()
        for logger in self._appending:
            logger.append = False

    def close_now(self) -> None:
        """Return at once; the directory is unlocked when the writer has finished."""
        if self._writing is None:
            self._store.close()
        else:
            self._writing.add_done_callback(lambda _: self._store.close())

    def _write(self, point: StartPoint, values: Values, python: Mapping[str, Any]) -> None:
        start_s, thread = time.monotonic(), threading.current_thread().name
        self._store.save(as_checkpoint(point, values, python, self._fingerprint))
        self._record(Span("checkpoint", thread, start_s, time.monotonic(), step=point.step))


def _narrow(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a weight in float16, or as it is if one of its values is too large for that."""
    with np.errstate(over="ignore"):
        narrow = weight.astype(np.float16)
    return narrow if np.array_equal(np.isfinite(narrow), np.isfinite(weight)) else weight


def _drawn(go_on: Callable[[Any], Any], position: Any) -> Any:
    """Have data go on from a position, or raise CheckpointMismatchError where it is other data."""
    try:
        return go_on(position)
    except ValueError as error:
        raise CheckpointMismatchError(
            f"the checkpoint does not fit this training's data: {error}; give another directory to start "
            "afresh"
        ) from error
