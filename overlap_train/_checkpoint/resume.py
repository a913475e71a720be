"""Resuming: after each delivery the training can go on from disk as if it had never been killed (C8).

A checkpoint is the state right after the callbacks of an epoch's end, with the weights that they saw or
set: what ran ahead of it, training and pending validations alike, is done again by the resumed run, from the
same weights, random state and position in the data. Or it is the state between two steps, with the snapshots
of the epochs that wait for their callbacks. `writing` says when one is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from overlap_train._callbacks.rewind import append_to_files, files_of, rewind_files
from overlap_train._callbacks.settings import Settings
from overlap_train._callbacks.state import capture_all, check_all, restore_all
from overlap_train._checkpoint.attributes import ModelAttributes
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.content import (
    LoadedCheckpoint,
    ReportedSettings,
    StartPoint,
    stored_values,
    understood,
)
from overlap_train._checkpoint.fingerprints import differences, listed_differences
from overlap_train._checkpoint.meta import Extent
from overlap_train._checkpoint.writing import ALL_VARIABLES, VALIDATED, CheckpointWriter
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import Cursor, CursorState, check_remembered
from overlap_train._keras.randomness import set_random_states
from overlap_train._snapshot import ModelState
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError
from overlap_train.options.checkpoint import CheckpointPolicy
from overlap_train.records import Span

__all__ = ["ReportedSettings", "Resumer", "StartPoint"]


class Resumer(CheckpointWriter):
    """Writes the checkpoints of one `fit` and starts it from the newest. Belongs to the training thread.

    Making it locks the directory and reads the newest sound checkpoint in it. CheckpointCorruptError means
    that all are damaged, CheckpointMismatchError that the newest sound one belongs to another model, data or
    history. `check_data` raises ValueError for a position in the data that is none.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        belongs_to: Mapping[str, str],
        variables: ModelState,
        *,
        extent: Extent | None = None,
        check_data: Callable[[CursorState], None] = check_remembered,
        attributes: ModelAttributes | None = None,
        reported: ReportedSettings | None = None,
        trained_by: Callable[[], Any] = lambda: None,
        say: Callable[[str], None] = lambda message: None,
        record: Callable[[Span], None] = lambda span: None,
    ) -> None:
        super().__init__(
            policy,
            belongs_to,
            variables,
            attributes=attributes,
            reported=reported,
            trained_by=trained_by,
            say=say,
            record=record,
        )
        self._extent, self._check_data = extent or Extent(), check_data
        self._appending: list[keras.callbacks.CSVLogger] = []
        try:
            self._found = self._load()
        except BaseException:
            self.close()
            raise

    def accept(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Take the callbacks and find which of them the checkpoint knows; call it before `on_train_begin`."""
        listed = list(callbacks)
        self._files, self._settings = files_of(listed), Settings(listed)
        self._accept()
        if self._found is not None:
            self._appending = append_to_files([callback for callback, _ in self._known(self._found)])

    def start(
        self,
        state: ModelState,
        cursor: Cursor,
        callbacks: Iterable[keras.callbacks.Callback],
        begin_epoch: Callable[..., None],
    ) -> StartPoint | None:
        """Put everything back as the checkpoint has it, if there is one; call it after `on_train_begin`.

        The callbacks' files come last, when nothing can be refused any more. `begin_epoch` calls the
        `on_epoch_begin` of an epoch that goes on: what the callbacks set in Python there is not in the
        checkpoint, and what they remember and change is. By `ahead` it learns whether earlier epochs are
        still to be delivered, so that it is not due for all.
        """
        listed, self._function = list(callbacks), self._trained_by()
        self._accept()
        found, self._found = self._found, None
        self._unstored.begin(listed, capture_all(listed))
        if found is None:
            self._captured(listed)
            return None
        self._draw_again(found)  # before the variables to which that writes are put back
        values = stored_values(state, found.state.arrays)
        if found.meta.cursor["within"]:
            begin_epoch(found.state.epoch, ahead=bool(found.undelivered))
        self._put_callbacks_back(found)
        state.restore(values)
        state.restore_drawn(values)
        self._put_attributes_back(found)
        meta = found.meta
        position = CursorState(**meta.cursor, data=found.data)
        self._put_random_back(found, state)
        self._go_to(position, cursor)
        self._put_random_back(found, state, again=True)
        self._tell_changes(found)
        rewind_files(listed, found.files, found.first_undelivered)
        self._appending = []
        self._written_step = found.state.step
        epoch, step = found.state.epoch, found.state.step
        where = (epoch, step, meta.stopped, meta.logs, meta.max_lag, position)
        return StartPoint(*where, found.undelivered, found.inside or None, meta.plan)

    def close(self) -> None:
        """Let the writer finish and unlocks the directory; loggers of a refused fit do as they were told."""
        super().close()
        for logger in self._appending:
            logger.append = False

    def _numbers(self, found: LoadedCheckpoint) -> list[int | None]:
        """Return the number of each callback in a checkpoint, None of one that is new."""
        return self._settings.known([state.kind for state in found.callbacks], found.meta.callback_settings)

    def _known(self, found: LoadedCheckpoint) -> list[tuple[keras.callbacks.Callback, ObjectValue]]:
        """Return the callbacks that a checkpoint knows, and what they remembered."""
        both = zip(self._settings.callbacks, self._numbers(found), strict=True)
        return [(callback, found.callbacks[number]) for callback, number in both if number is not None]

    def _put_callbacks_back(self, found: LoadedCheckpoint) -> None:
        self._say_unstored(found.callbacks)
        known = self._known(found)
        stay = restore_all([callback for callback, _ in known], [state for _, state in known])
        if stay:
            names = ", ".join(stay)
            self._say(f"these attributes of callbacks cannot be restored and keep their values: {names}")
        self._settings.put_back(found.meta.callback_settings, self._numbers(found))

    def _put_attributes_back(self, found: LoadedCheckpoint) -> None:
        stay = self._attributes.put_back(found.attributes) if self._attributes is not None else ()
        if stay:
            names = ", ".join(stay)
            self._say(f"these attributes of the model are not put back, because its code reads them: {names}")

    def _draw_again(self, found: LoadedCheckpoint) -> None:
        """Have the validation data stand where it stood."""
        passed = found.data.pop(VALIDATED, {})
        if self._passes is None:
            return
        try:
            self._passes.go_on(passed)
        except ValueError as error:
            raise _does_not_fit(error) from error
        self._note_passes()

    def _go_to(self, position: CursorState, cursor: Cursor) -> None:
        try:
            others = cursor.resume(position)
        except ValueError as error:
            raise _does_not_fit(error) from error
        if others:
            self._say(f"of the training data these attributes are others than before: {', '.join(others)}")

    def _put_random_back(self, found: LoadedCheckpoint, state: ModelState, *, again: bool = False) -> None:
        """Put everybody's random generators back, once the values of the variables are restored.

        `again` says that data has put back the states that it had drawn from.
        """
        if again and not (found.meta.in_turn and not found.data.get("begun")):
            return
        known = {id(handle) for variable in state.variables for handle in variable.handles}
        try:
            set_random_states(found.random, known)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise CheckpointMismatchError(
                f"the checkpoint's random states cannot be put back ({error_text(error):.160}); was it "
                "written with other versions of TensorFlow or Keras? Give another directory to start afresh"
            ) from error

    def _tell_changes(self, found: LoadedCheckpoint) -> None:
        for name, value in self._reported.settings.items():
            before = found.meta.settings.get(name, value)
            if before != value:
                self._say(f"{name} is {value}; until the checkpoint it was {before}")
        numbers = self._numbers(found)
        new = [type(c).__name__ for c, n in zip(self._settings.callbacks, numbers, strict=True) if n is None]
        if new:
            self._say(f"these callbacks are not in the checkpoint and begin now: {', '.join(new)}")
        missing = [state.kind for number, state in enumerate(found.callbacks) if number not in numbers]
        if missing:
            self._say(
                "these callbacks of the checkpoint are missing now, and what they remembered is left out: "
                f"{', '.join(missing)}"
            )
        given, now = self._settings.compared(found.meta.callback_settings, numbers)
        both = {**found.meta.configuration, **given}, {**self._reported.configuration, **now}
        changes = differences(*both, self._reported.rate())
        if changes:
            self._say(
                "this training is configured otherwise than that of the checkpoint: "
                f"{listed_differences(changes)}"
            )

    def _load(self, *, of_callbacks: bool = False) -> LoadedCheckpoint | None:
        """Read the newest checkpoint that makes sense, to the callbacks too if they are known."""
        found: list[LoadedCheckpoint] = []

        def check(state: CheckpointState) -> None:
            self._require_same(state)
            newest = understood(state, self._variables, self._extent, self._check_data)
            if self._attributes is not None:
                self._attributes.check(newest.attributes)
            if of_callbacks:
                self._check_callbacks(newest)
            found.append(newest)

        self._store.load_latest(check)
        return found[0] if found else None

    def _require_same(self, state: CheckpointState) -> None:
        """Refuse a training whose history would hold values of two kinds, or that has other variables."""
        before, now = dict(state.fingerprint), dict(self._fingerprint)
        if before == now:
            return
        settings = state.meta.get("configuration")
        if isinstance(settings, dict) and all(isinstance(text, str) for text in settings.values()):
            before = {**before, **settings, **before}
            now = {**now, **self._reported.configuration, **now}
        changes = differences(before, now)
        shown = [each for each in changes if not each.startswith(ALL_VARIABLES)]  # which follows from others
        raise CheckpointMismatchError(
            f"The checkpoints in {self._policy.directory} are of another training. What differs: "
            f"{listed_differences(shown or changes)}. Build the same training, or give another directory to "
            "start afresh."
        )

    def _accept(self) -> None:
        """Go back to an older checkpoint if the newest is invalid to the callbacks."""
        if self._found is None:
            return
        try:
            self._check_callbacks(self._found)
        except CheckpointCorruptError:
            self._found = self._load(of_callbacks=True)

    def _check_callbacks(self, found: LoadedCheckpoint) -> None:
        known = self._known(found)
        check_all([callback for callback, _ in known], [state for _, state in known])
        self._settings.check(found.meta.callback_settings, self._numbers(found))


def _does_not_fit(error: ValueError) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the checkpoint does not fit this training's data: {error}; give another directory to start afresh"
    )
