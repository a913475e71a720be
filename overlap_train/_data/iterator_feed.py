"""A: training data that is drawn by an iterator for each pass: all but arrays that may be held."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from overlap_train._data.feed import Feed
from overlap_train._data.iterators import end_iterators, next_batch
from overlap_train._data.pass_state import (
    NotesState,
    PassSeeds,
    PipelineVariables,
    SourceState,
    state_of,
    unseeded_draws,
)
from overlap_train._data.pipeline import (
    cache_files,
    caches_draws,
    calls_python,
    captured_by,
    draws_lazily,
    draws_orders,
    is_asked_for_its_end,
    keeps_more_than_variables,
    prepared_batches,
    python_functions,
    read_by,
    rows_of_batches,
    shuffles_of,
)
from overlap_train._data.replay_buffer import ReplayBuffer, ReplayPass
from overlap_train._keras.data import Pipeline
from overlap_train._support.fit_arguments import Preprocess
from overlap_train._support.printing import error_text
from overlap_train._support.threads import in_background

# Passes that are made again only to leave the user's shuffles as they would: 50 us each, and all for little.
_MOST_LEFT = 1 << 18


class IteratorFeed(Feed):
    """Anything that Keras can turn into a `tf.data.Dataset`; a pass is an iterator over it.

    Each new iterator draws from the seeds of the user's shuffles. A pass is repeated by setting those seeds
    to where they stood at the first pass and making as many iterators again. The state of the first iterator,
    saved before it has drawn an element, holds the seeds and no data. Saving it costs a few microseconds for
    each slot of a shuffle buffer, so it is done once, in a background thread, while functions are traced.

    Variables to which the pipeline's functions write (a `tf.random.Generator`, a layer that augments) are not
    part of that state. They are restored with the training's other variables before a pass is made again; for
    a pass that had begun, the values that they had when it was made are kept here.

    There is no such state where Python makes the data. It also lacks the seeds of a shuffle that draws them
    with its first element, as one under another shuffle or a repeat does. Such data can go back only as far
    as its batches are kept.
    """

    def __init__(self, pipeline: Pipeline, preprocess: Preprocess | None = None) -> None:
        self._pipeline = pipeline
        self._dataset = prepared_batches(pipeline.dataset, preprocess)
        self._draws_end = is_asked_for_its_end(pipeline.dataset)
        self.num_batches = pipeline.num_batches
        self.element_spec = self._dataset.element_spec
        self.captured = captured_by(self._dataset)
        self.written_variables = [variable for variable in self.captured if variable.written]
        self.reads = read_by(self._dataset)
        self.shuffles = shuffles_of(self._dataset)
        self.files = cache_files(self._dataset)
        self.runs_python = pipeline.by_python or calls_python(self._dataset)
        self.user_dataset = None if pipeline.by_python else pipeline.dataset
        self._first: Any = None  # the first iterator, until a pass begins with it
        self._origin: Callable[[], tf.Tensor | None] | None = None  # waits until its state is saved
        self._variables = PipelineVariables(self.written_variables)
        self._seeds: PassSeeds | None = None
        self._state: SourceState | None = None  # of data that Python makes, for a checkpoint
        self._states: dict[tuple[int, bool], dict[str, Any]] = {}  # of it, by pass and whether it had begun
        self._resumes = False  # whether the next pass is that of another process

    @property
    def first_rows(self) -> int | None:
        return self.full_batch or rows_of_batches(self._dataset)

    def prepare(self) -> None:
        """Makes the first iterator and begins to save its seeds."""
        if self._origin is not None:
            return
        if not self._has_seeds():
            self._origin = lambda: None
            return
        self._first = first = iter(self._dataset)
        self._origin = in_background(lambda: _save_iterator(first), "overlap-seeds").result

    def inspection(self) -> contextlib.ExitStack:
        # An iterator would draw from the user's seeds; the pipeline's operations tell nearly as much.
        before, undo = (self._origin, self.replay), contextlib.ExitStack()
        if self._origin is None:
            state = tf.constant(0) if self._has_seeds() else None
            self._origin = lambda: state

        @undo.callback
        def restore() -> None:
            self._origin, self.replay = before

        return undo

    def _has_seeds(self) -> bool:
        """Whether the state of a new iterator is all that the passes from it on depend on."""
        dataset = self._dataset
        if not self._pipeline.is_dataset or keeps_more_than_variables(dataset) or calls_python(dataset):
            return False
        return not (draws_lazily(dataset) or draws_orders(dataset) or caches_draws(dataset))

    def _first_state(self) -> tf.Tensor | None:
        """Waits for the state of the first iterator, variant[n]; None if it does not hold all the seeds."""
        self.prepare()
        assert self._origin is not None
        return self._origin()

    @property
    def rewindable(self) -> bool:
        return self._first_state() is not None

    @property
    def python_sources(self) -> Sequence[Any]:
        return [self._pipeline.stateful, *python_functions(self._dataset)]

    def keep(self, limit_bytes: int) -> bool:
        # A rollback restores the variables that a pipeline reads and writes, while its iterators go on. And
        # hosts with rows of their own would keep different numbers of batches, but make equal calls.
        possible = self.ends_alone and not self.reads and limit_bytes > 0
        if self.replay is None and possible and not self.num_passes and self._first is None:
            # TensorFlow may borrow the memory of arrays that Python fills again.
            self.replay = ReplayBuffer(self._dataset, limit_bytes, copies=self.runs_python)
        return self.replay is not None

    @property
    def unsaved(self) -> Sequence[str]:
        return () if self._state is None else self._state.left_out

    def remember(self, note: NotesState) -> bool:
        if self._state is None:
            if self._pipeline.resumable:
                self._state = note(self._pipeline.stateful)
            elif self._seeds is None and self.rewindable:
                self._seeds = PassSeeds.of(self._dataset, self._first_state())
        return self._state is not None or self.rewindable

    def share_seeds(self, from_chief: Callable[[Any], Any]) -> None:
        if self._state is None and self.rewindable:
            self._seeds = PassSeeds.of(self._dataset, self._first_state())
        seed = from_chief(None if self._seeds is None else self._seeds.seed)
        if self._seeds is not None and isinstance(seed, int):
            self._seeds.take(seed)

    @property
    def unseeded(self) -> Sequence[str]:
        return [] if self._seeds is not None else unseeded_draws(self._dataset)

    def mark(self) -> None:
        # Since the pass was made a validation or a callback may have written.
        self._variables.note(self.num_passes)
        self._source_state(begun=True)

    def memory(self, *, begun: bool) -> dict[str, Any]:
        if self._state is None:
            seed = {} if self._seeds is None else {"own_seed": self._seeds.seed}
            rewinds = begun and self._rewinds_variables
            return seed | ({"variables": self._variables.noted(self.num_passes)} if rewinds else {})
        return self._source_state(begun=begun)

    def _source_state(self, *, begun: bool) -> dict[str, Any]:
        """Returns the state before a pass's first batch, or behind the passes so far.

        Taken when the training is first there: after a rollback the source is further on.
        """
        if self._state is None:
            return {}
        if (self.num_passes, begun) not in self._states:
            self._states[self.num_passes, begun] = {"begun": begun, **self._state.take()}
        return self._states[self.num_passes, begun]

    def tell_anew(self) -> None:
        self._states.pop((self.num_passes, False), None)

    def recall(self, num_passes: int, memory: dict[str, Any]) -> Sequence[str]:
        if self._rewinds_variables and "variables" in memory:
            self._variables.take(num_passes, memory["variables"])
        if self._seeds is not None:
            self._seeds.take(memory.get("own_seed"))
        if self._state is None:
            return ()
        if not self._pipeline.restarts and (num_passes > 1 or not memory.get("begun")):
            raise ValueError("it was written after a generator had ended, which cannot begin again")
        try:
            others = self._state.put_back(memory)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the state of its data is invalid ({error_text(error):.160})") from error
        self._resumes = True
        return others

    def used(self, batches: Any, first: int, steps: int) -> None:
        if self.replay is not None:
            self.replay.used(batches, first, steps)
        if self._draws_end and first + steps == self.num_batches:
            next_batch(batches.iterator if isinstance(batches, ReplayPass) else batches)

    def forget(self, number: int, batch: int = 0) -> None:
        self._states = {key: state for key, state in self._states.items() if key[0] >= number}
        self._variables.forget(number)
        if self.replay is not None:
            self.replay.forget(number, batch)

    def reopen(self, number: int, batch: int) -> Any:
        if self._resumes:
            return self._reopen_resumed(number, batch)
        if self.replay is not None:
            self.replay.rewind(number, batch)
            self.num_passes = number
            return self.replay.open(number)
        if self._rewinds_variables and batch:  # or nothing of it had been drawn
            self._variables.put_back(number)
        return self._skip(super().reopen(number, batch), batch)

    def _reopen_resumed(self, number: int, batch: int) -> Any:
        """Makes a pass go on as another process left it, drawn from its first batch on."""
        self._resumes, self.num_passes = False, number - 1
        batches = self.new_pass()
        self.mark()
        self._skip(batches, batch)
        self.used(batches, 0, batch)
        self.forget(number, batch)
        return batches

    def _skip(self, batches: Any, count: int) -> Any:
        """Draws the first batches of a pass and drops them; returns the pass."""
        for _ in range(count):
            if next_batch(batches.iterator if isinstance(batches, ReplayPass) else batches) is None:
                if not self.ends_alone:
                    break
                raise ValueError(f"the training data ended before batch {count}, where it had stood")
        return batches

    @property
    def _rewinds_variables(self) -> bool:
        return bool(self.written_variables) and self.rewindable

    def new_pass(self) -> Any:
        self.prepare()
        self.num_passes += 1
        self._variables.note(self.num_passes)
        return self._next_iterator() if self.replay is None else self.replay.open(self.num_passes)

    def _next_iterator(self) -> Any:
        if self._seeds is not None:
            return self._seeds.iterator(self.num_passes)
        if self._first is None:
            return iter(self._dataset)
        self._first_state()  # an iterator that is being saved must not be advanced
        iterator, self._first = self._first, None
        return iterator

    def draw_beforehand(self) -> None:
        if not self._pipeline.looked_at:
            return
        self.begin_epoch()
        self.prepare()
        if self._first is None or self.written_variables:
            next_batch(self._next_iterator())
        self._first = None  # which has drawn its seeds, and may be under way to be saved

    def rewind(self, num_passes: int) -> None:
        if num_passes == self.num_passes:
            return
        if self._resumes:
            self._resumes = False
        elif self.replay is not None:
            self.replay.rewind(num_passes + 1, 0)
        elif not self.rewindable:
            raise RuntimeError(
                "a callback has changed the training, whose data cannot be rewound, although it declares "
                "overlap_safe = True or is a library's that only watches; leave that out, or pass "
                "ValidationPolicy(on_change='continue')"
            )
        elif self._seeds is None:
            self._first = self._made_again(num_passes + 1)
        self.num_passes = num_passes

    def leave(self, num_passes: int) -> None:
        if self.replay is not None or self._resumes or self._seeds is not None or not self.rewindable:
            return
        if 0 < num_passes != self.num_passes and num_passes < _MOST_LEFT:
            self._made_again(num_passes)

    def _made_again(self, number: int) -> Any:
        """Returns the iterator of a pass, counted from 1, with the seeds as they stood when it was made."""
        iterator = iter(self._dataset)
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=self._first_state()
        )
        for _ in range(number - 1 + self._pipeline.looked_at):
            iterator = iter(self._dataset)
        return iterator

    def describe(self) -> dict[str, str]:
        kind = "a generator" if self._pipeline.by_python else "a pipeline"
        if self._pipeline.stateful is not None:
            kind = type(self._pipeline.stateful).__name__
        return {"": kind, "batches": str(self.num_batches), "elements": str(self.element_spec)}

    def begin_epoch(self) -> None:
        self._pipeline.begin_epoch()

    def skip_epochs(self, count: int) -> None:
        self._pipeline.skip_epochs(count)

    def end_epoch(self) -> None:
        self._pipeline.end_epoch()

    def close(self, passes: list[Any] | None = None) -> None:
        self._pipeline.close()
        iterators = [] if passes is None else passes
        iterators += [self._first, self.replay]
        self._first = self.replay = None
        end_iterators(iterators)


def _save_iterator(iterator: Any) -> tf.Tensor | None:
    """Returns the state of a `tf.data` iterator, variant[n]; None if a stage cannot be saved."""
    try:
        return state_of(iterator)
    except tf.errors.OpError:
        return None
