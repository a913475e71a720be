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
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.content import LoadedCheckpoint, StartPoint, take_apart
from overlap_train._checkpoint.fingerprints import differences, listed_differences
from overlap_train._checkpoint.writing import ALL_VARIABLES, VALIDATION_PASSES, CheckpointWriter
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import Cursor, CursorState, check_position
from overlap_train._keras.randomness import set_random_states
from overlap_train._snapshot import ModelState
from overlap_train._support.printing import error_text
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError
from overlap_train.options.checkpoint import CheckpointPolicy


class Resumer(CheckpointWriter):
    """Writes the checkpoints of one `fit` and starts it from the newest. Belongs to the training thread.

    Making it locks the directory and reads the newest sound checkpoint in it. CheckpointCorruptError means
    that all are damaged, CheckpointMismatchError that the newest sound one belongs to another model, data or
    history. `check_data` raises ValueError for an invalid position in the data; `options` are those of
    `CheckpointWriter`.
    """

    def __init__(
        self,
        policy: CheckpointPolicy,
        belongs_to: Mapping[str, str],
        variables: ModelState,
        *,
        check_data: Callable[[CursorState], None] = check_position,
        **options: Any,
    ) -> None:
        super().__init__(policy, belongs_to, variables, **options)
        self._check_data = check_data
        self._appending: list[keras.callbacks.CSVLogger] = []
        try:
            self._newest = self._load()
        except BaseException:
            self.close()
            raise

    def accept(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Match the callbacks with those of the checkpoint; call it before `on_train_begin`."""
        callbacks = list(callbacks)
        self._files, self._settings = files_of(callbacks), Settings(callbacks)
        self._accept()
        if self._newest is not None:
            self._appending = append_to_files([callback for callback, _ in self._matches(self._newest)])

    def start(
        self,
        state: ModelState,
        cursor: Cursor,
        callbacks: Iterable[keras.callbacks.Callback],
        begin_epoch: Callable[..., None],
    ) -> StartPoint | None:
        """Put everything back as the checkpoint has it, if there is one; call it after `on_train_begin`.

        The callbacks' files come last, when nothing can be refused any more. `begin_epoch` calls the
        `on_epoch_begin` of an epoch that goes on: a checkpoint has what callbacks remember and change, but
        not what else they set in Python there. Its argument `ahead` says that an earlier epoch is still to be
        delivered, so that only some callbacks are due.
        """
        callbacks, self._function = list(callbacks), self._trained_by()
        self._accept()
        checkpoint, self._newest = self._newest, None
        self._unstored.begin(callbacks, capture_all(callbacks))
        if checkpoint is None:
            self._captured(callbacks)
            return None
        meta, epoch, step = checkpoint.meta, checkpoint.state.epoch, checkpoint.state.step
        self._redraw_validation_data(checkpoint)  # which writes to variables that are put back below
        values, position = checkpoint.values, checkpoint.position
        if position.within:
            begin_epoch(epoch, ahead=bool(checkpoint.undelivered))
        self._put_callbacks_back(checkpoint)
        state.restore(values)
        state.restore_pipeline(values)
        self._put_attributes_back(meta)
        self._put_random_back(checkpoint)
        self._go_to(position, cursor)
        if meta["in_turn"] and not position.data.get("begun"):
            self._put_random_back(checkpoint)  # the data has just put back the states that it had drawn from
        self._report_changes(checkpoint)
        rewind_files(callbacks, checkpoint.files, checkpoint.first_undelivered)
        self._appending = []
        self._written_step = step
        where = (
            epoch,
            step,
            meta["stopped"],
            meta["logs"],
            meta["max_lag"],
            position,
            checkpoint.undelivered,
        )
        return StartPoint(*where, checkpoint.inside or None, meta["plan"])

    def close(self) -> None:
        """Let the writer finish and unlock the directory; loggers of a refused fit get their setting back."""
        super().close()
        for logger in self._appending:
            logger.append = False

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
        self._settings.put_back(checkpoint.meta["callback_settings"], self._numbers(checkpoint))

    def _put_attributes_back(self, meta: Mapping[str, Any]) -> None:
        stay = self._attributes.put_back(meta["attributes"]) if self._attributes is not None else ()
        if stay:
            names = ", ".join(stay)
            self._say(f"these attributes of the model are not put back, because its code reads them: {names}")

    def _redraw_validation_data(self, checkpoint: LoadedCheckpoint) -> None:
        """Draw the validation data as far as it had been drawn."""
        standing = checkpoint.position.data.pop(VALIDATION_PASSES, {})
        if self._passes is None:
            return
        try:
            self._passes.go_on(standing)
        except ValueError as error:
            raise _does_not_fit(error) from error
        self._note_passes()

    def _go_to(self, position: CursorState, cursor: Cursor) -> None:
        try:
            names = cursor.resume(position)
        except ValueError as error:
            raise _does_not_fit(error) from error
        if names:
            self._say(f"of the training data these attributes are others than before: {', '.join(names)}")

    def _put_random_back(self, checkpoint: LoadedCheckpoint) -> None:
        """Put the global random generators back, once the values of the variables are restored."""
        try:
            set_random_states(checkpoint.random, self._handles)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise CheckpointMismatchError(
                f"the checkpoint's random states cannot be put back ({error_text(error):.160}); was it "
                "written with other versions of TensorFlow or Keras? Give another directory to start afresh"
            ) from error

    def _report_changes(self, checkpoint: LoadedCheckpoint) -> None:
        meta, numbers = checkpoint.meta, self._numbers(checkpoint)
        for name, value in self._reported.settings.items():
            before = meta["settings"].get(name, value)
            if before != value:
                self._say(f"{name} is {value}; until the checkpoint it was {before}")
        new = [type(c).__name__ for c, n in zip(self._settings.callbacks, numbers, strict=True) if n is None]
        if new:
            self._say(f"these callbacks are not in the checkpoint and begin now: {', '.join(new)}")
        missing = [state.kind for n, state in enumerate(checkpoint.callbacks) if n not in numbers]
        if missing:
            self._say(
                "these callbacks of the checkpoint are missing now, and what they remembered is left out: "
                f"{', '.join(missing)}"
            )
        settings, present = self._settings.compared(meta["callback_settings"], numbers)
        configurations = {**meta["configuration"], **settings}, {**self._reported.configuration, **present}
        changes = differences(*configurations, self._reported.rate())
        if changes:
            self._say(
                "this training is configured otherwise than that of the checkpoint: "
                f"{listed_differences(changes)}"
            )

    def _load(self, *, of_callbacks: bool = False) -> LoadedCheckpoint | None:
        """Read the newest checkpoint that makes sense, to the callbacks too if they have been accepted."""

        def check(state: CheckpointState) -> LoadedCheckpoint:
            self._require_same(state)
            checkpoint = take_apart(state, self._variables, self._check_data)
            if of_callbacks:
                self._check_callbacks(checkpoint)
            return checkpoint

        return self._store.load_latest(check)

    def _require_same(self, state: CheckpointState) -> None:
        """Refuse a training whose history would hold values of two kinds, or that has other variables."""
        before, now = dict(state.fingerprint), dict(self._fingerprint)
        if before == now:
            return
        settings = state.meta.get("configuration")
        if isinstance(settings, dict):
            before = {**before, **settings, **before}
            now = {**now, **self._reported.configuration, **now}
        changes = differences(before, now)
        # The order of the variables follows from what else differs.
        causes = [change for change in changes if not change.startswith(ALL_VARIABLES)]
        raise CheckpointMismatchError(
            f"The checkpoints in {self._policy.directory} are of another training. What differs: "
            f"{listed_differences(causes or changes)}. Build the same training, or give another directory to "
            "start afresh."
        )

    def _accept(self) -> None:
        """Go back to an older checkpoint if the newest is invalid to the callbacks."""
        if self._newest is None:
            return
        try:
            self._check_callbacks(self._newest)
        except CheckpointCorruptError:
            self._newest = self._load(of_callbacks=True)

    def _check_callbacks(self, checkpoint: LoadedCheckpoint) -> None:
        check_all(self._matches(checkpoint))
        self._settings.check(checkpoint.meta["callback_settings"], self._numbers(checkpoint))


def _does_not_fit(error: ValueError) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the checkpoint does not fit this training's data: {error}; give another directory to start afresh"
    )
