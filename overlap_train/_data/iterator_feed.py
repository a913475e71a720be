"""A: from what `fit` was given as training data to the feed of its steps.

Arrays that may be held are an `ArrayFeed`; anything else is drawn by an iterator for each pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import Preprocess, copied_bytes, end_iterators, next_batch
from overlap_train._data.feed import Feed
from overlap_train._data.pass_state import (
    NotesState,
    PassSeeds,
    PipelineVariables,
    SourceState,
    begun_at,
    state_at,
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
    looks_up_rows,
    prepared_batches,
    python_draws_at_pass,
    python_functions,
    read_by,
    shuffles_of,
)
from overlap_train._data.pipeline_parts import rows_of_batches
from overlap_train._data.replay_buffer import ReplayBuffer, ReplayPass
from overlap_train._keras.data import Arrays, Pipeline, row_shuffling
from overlap_train._support.printing import error_text
from overlap_train._support.threads import in_background

__all__ = ["IteratorFeed", "make_feed"]


# Passes that are made again only to leave the user's shuffles as they would: 50 us each, and all for little.
_MOST_LEFT = 1 << 18


class IteratorFeed(Feed):
    """Anything that Keras can turn into a `tf.data.Dataset`; a pass is an iterator over it.

    Each new iterator draws from the seeds of the user's shuffles, so a pass is repeated by putting those
    seeds back to where they stood at the first pass and making as many iterators again. The first
    iterator's state, taken before it has drawn an element, holds the seeds and no data. Taking it costs a
    few microseconds for each slot of a shuffle buffer, so it is done once, in a thread of its own, while
    the training functions are traced. Variables to which the pipeline's functions write (a
    `tf.random.Generator`, a layer that augments) are not in it. They are put back with the training's other
    variables before a pass is made again; for one that had begun, their values are kept as it was made.
    Where Python makes the data there is no such state; nor are the seeds in it of a shuffle that draws them
    only with its first element, as under another shuffle or a repeat. Such data can still go back to where
    it was told to keep its batches.
    """

    def __init__(self, pipeline: Pipeline, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._dataset = prepared_batches(pipeline.dataset, preprocess)
        self._draws_end = is_asked_for_its_end(pipeline.dataset)
        self.num_batches = pipeline.num_batches
        self.element_spec = self._dataset.element_spec
        self.captured = captured_by(self._dataset)
        self.drawn_variables = [variable for variable in self.captured if variable.written]
        self.reads = read_by(self._dataset)
        self.shuffles = shuffles_of(self._dataset)
        self.files = cache_files(self._dataset)
        self._first: Any = None
        self._origin: Future[tf.Tensor | None] | None = None
        self._kept: ReplayBuffer | None = None
        self._note: NotesState | None = None
        self._state: SourceState | None = None
        self._taken: dict[tuple[int, bool], dict[str, Any]] = {}
        self._recalled = False
        self._position: dict[str, Any] | None = None
        self._telling: dict[int, Any] = {}
        self._variables = PipelineVariables(self.drawn_variables)
        self._seeds: PassSeeds | None = None

    @property
    def first_rows(self) -> int | None:
        return self.full_batch or rows_of_batches(self._dataset)

    def prepare(self) -> None:
        """Makes the first iterator and begins to save its seeds."""
        if self._origin is not None:
            return
        if not self._has_seeds() or calls_python(self._dataset):
            self._origin = Future()
            self._origin.set_result(None)
            return
        self._first = iter(self._dataset)
        first, known = self._first, looks_up_rows(self._dataset)
        self._origin = in_background(lambda: _save_iterator(first, known_python=known), "overlap-seeds")

    def looked_at(self) -> contextlib.ExitStack:
        # An iterator would draw from the user's seeds; the pipeline's operations tell nearly as much.
        before, undo = (self._origin, self._kept), contextlib.ExitStack()
        if self._origin is None:
            known = self._has_seeds() and not calls_python(self._dataset)
            self._origin = Future()
            self._origin.set_result(tf.constant(0) if known else None)

        @undo.callback
        def put_back() -> None:
            self._origin, self._kept = before

        return undo

    def _has_seeds(self) -> bool:
        """Whether the state of a new iterator is all that the passes from it on depend on."""
        if not self._pipeline.is_dataset or not isinstance(self._dataset, tf.data.Dataset):
            return False
        dataset = self._dataset
        hidden = keeps_more_than_variables(dataset) or draws_lazily(dataset) or draws_orders(dataset)
        return not hidden and not caches_draws(dataset)

    @property
    def rewindable(self) -> bool:
        self.prepare()
        return self._origin is not None and self._origin.result() is not None

    @property
    def runs_python(self) -> bool:
        return self._pipeline.by_python or calls_python(self._dataset)

    @property
    def python_sources(self) -> Sequence[Any]:
        return [self._pipeline.stateful, *python_functions(self._dataset)]

    @property
    def keeps(self) -> bool:
        return self._kept is not None

    @property
    def full(self) -> bool:
        return self._kept is not None and self._kept.size_bytes >= self._kept.limit_bytes

    def keep(self, limit_bytes: int) -> bool:
        # What a pipeline reads and writes of variables is rolled back, while its iterators go on.
        possible = isinstance(self._dataset, tf.data.Dataset) and not self.reads and limit_bytes > 0
        begun = self.drawn > 0 or self._first is not None
        if self._kept is None and possible and not begun and self.may_keep:
            lends = self.runs_python and not self._pipeline.own_batches()
            self._kept = ReplayBuffer(self._dataset, limit_bytes, copies=lends)
        return self._kept is not None

    @property
    def left_out(self) -> Sequence[str]:
        return () if self._state is None else self._state.left_out

    def remember(self, note: NotesState) -> bool:
        if self._state is None and isinstance(self._dataset, tf.data.Dataset):
            alike = self._pipeline.is_dataset and python_draws_at_pass(self._dataset)
            if self._pipeline.resumable or (alike and not self.rewindable):
                self._note, self._state = note, note(self._pipeline.stateful)
            elif self.rewindable and self._origin is not None:
                self._seeds = PassSeeds.of(self._dataset, self._origin.result())
        return self._state is not None or self.rewindable

    def share_seeds(self, from_chief: Callable[[Any], Any]) -> None:
        if self._state is None and self.rewindable and self._origin is not None:
            self._seeds = PassSeeds.of(self._dataset, self._origin.result())
        seed = from_chief(None if self._seeds is None else self._seeds.seed)
        if self._seeds is not None and isinstance(seed, int):
            self._seeds.take(seed)

    @property
    def unseeded(self) -> Sequence[str]:
        return [] if self._seeds is not None else unseeded_draws(self._dataset)

    def mark(self) -> None:
        # Since the pass was made a validation or a callback may have written.
        self._variables.note(self.drawn)
        self._take(begun=True)

    def remembered(self, *, begun: bool, seen: int) -> dict[str, Any]:
        if self._state is None:
            seed = {} if self._seeds is None else {"own_seed": self._seeds.seed}
            rewinds = self._rewinds_variables and begun
            return seed | ({"variables": self._variables.noted(self.drawn)} if rewinds else {})
        taken, position = self._take(begun=begun), None
        if begun and taken and self._note is not None:
            position = state_at(self._telling.get(self.drawn), seen, self._note)
        return taken if position is None else {**taken, "position": position}

    def _take(self, *, begun: bool) -> dict[str, Any]:
        """Returns the state before a pass's first batch, or behind the passes so far.

        Taken when the training is first there: after a rollback the source stands further on.
        """
        if self._state is None:
            return {}
        if (self.drawn, begun) not in self._taken:
            self._taken[self.drawn, begun] = {"begun": begun, **self._state.take()}
        return self._taken[self.drawn, begun]

    def tell_anew(self) -> None:
        self._taken.pop((self.drawn, False), None)

    def check(self, remembered: dict[str, Any], *, begun: bool) -> None:
        if self._seeds is not None:
            self._seeds.check(remembered.get("own_seed"))
        if self._rewinds_variables:
            if begun or "variables" in remembered:
                self._variables.check(remembered.get("variables"))
        elif self._state is not None:
            self._state.check(remembered)

    def recall(self, drawn: int, remembered: dict[str, Any]) -> Sequence[str]:
        if self._rewinds_variables and "variables" in remembered:
            self._variables.take(drawn, remembered["variables"])
        if self._seeds is not None:
            self._seeds.take(remembered.get("own_seed"))
        if self._state is None:
            return ()
        if not self._pipeline.restarts and (drawn > 1 or not remembered.get("begun")):
            raise ValueError("it was written after a generator had ended, which cannot begin again")
        try:
            others = self._state.put_back(remembered)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the state of its data is invalid ({error_text(error):.160})") from error
        self._recalled, self._position = True, remembered.get("position")
        return others

    def source(self, opened: Any) -> Any:
        return opened.iterator if isinstance(opened, ReplayPass) else opened

    def used(self, opened: Any, first: int, steps: int) -> None:
        if self._pipeline.told is not None and steps:
            self._telling.setdefault(self.drawn, self._pipeline.told.newest)
        if self._kept is not None:
            self._kept.used(opened, first, steps)
        elif self._draws_end and first + steps == self.num_batches:
            next_batch(opened)

    def failed(self, opened: Any, first: int, error: Exception) -> None:
        if self._kept is not None:
            self._kept.failed(opened, first, error)

    def most_steps(self, opened: Any) -> int | None:
        return None if self._kept is None else self._kept.most_steps(opened)

    def forget(self, drawn: int, seen: int = 0) -> None:
        self._taken = {key: state for key, state in self._taken.items() if key[0] >= drawn}
        self._telling = {number: each for number, each in self._telling.items() if number >= drawn}
        self._variables.forget(drawn)
        if self._kept is not None:
            self._kept.forget(drawn, seen)

    def reopen(self, drawn: int, seen: int) -> Any:
        if self._recalled:
            return self._reopen_recalled(drawn, seen)
        if self._kept is None:
            if self._rewinds_variables and seen:  # or nothing of it had been drawn
                self._variables.put_back(drawn)
            return super().reopen(drawn, seen)
        self._kept.rewind(drawn, seen)
        self.drawn = drawn
        return self._kept.open(drawn)

    def _reopen_recalled(self, drawn: int, seen: int) -> Any:
        """Makes a pass go on as another process left it: by its state, or drawn from its first batch on."""
        self._recalled, self.drawn = False, drawn - 1
        opened = self.new_pass()
        self.mark()
        told, position, begun = self._pipeline.told, self._position, None
        if told is not None and position is not None and self._note is not None:
            begun = begun_at(told, seen, position, self._note)
        if begun is not None:
            self._telling[drawn] = begun
            return opened
        for _ in range(seen):
            if next_batch(self.source(opened)) is None:
                raise ValueError(f"the training data ended before batch {seen}, where the checkpoint stood")
        self.used(opened, 0, seen)
        self.forget(drawn, seen)
        return opened

    @property
    def _rewinds_variables(self) -> bool:
        return bool(self.drawn_variables) and self.rewindable

    def new_pass(self) -> Any:
        self.prepare()
        self.drawn += 1
        self._variables.note(self.drawn)
        return self._next_iterator() if self._kept is None else self._kept.open(self.drawn)

    def _next_iterator(self) -> Any:
        if self._seeds is not None:
            return self._seeds.iterator(self.drawn)
        if self._first is None:
            return iter(self._dataset)
        assert self._origin is not None
        self._origin.result()  # an iterator that is being saved must not be advanced
        iterator, self._first = self._first, None
        return iterator

    def draw_beforehand(self) -> None:
        if not self._pipeline.looked_at:
            return
        self.begin_epoch()
        self.prepare()
        if self._first is None or self.drawn_variables:
            next_batch(self._next_iterator())
        self._first = None  # which has drawn its seeds, and may be under way to be saved

    def rewind(self, drawn: int) -> None:
        if drawn == self.drawn:
            return
        if self._recalled:
            self._recalled, self.drawn = False, drawn
            return
        if self._kept is not None:
            self._kept.rewind(drawn + 1, 0)
            self.drawn = drawn
            return
        if not self.rewindable:
            raise RuntimeError(
                "a callback has changed the training, whose data cannot be rewound, although it declares "
                "overlap_safe = True; leave that out, or pass ValidationPolicy(on_change='continue')"
            )
        if self._seeds is None:
            self._first = self._made_again(drawn + 1)
        self.drawn = drawn

    def leave(self, drawn: int) -> None:
        possible = self._kept is None and not self._recalled and self.rewindable and self._seeds is None
        if possible and 0 < drawn != self.drawn and drawn < _MOST_LEFT:
            self._made_again(drawn)

    def _made_again(self, number: int) -> Any:
        """Returns the iterator of a pass, counted from 1, with the seeds as they stood when it was made."""
        assert self._origin is not None
        iterator = iter(self._dataset)
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=self._origin.result()
        )
        for _ in range(number - 1 + self._pipeline.looked_at):
            iterator = iter(self._dataset)
        return iterator

    def describe(self) -> dict[str, str]:
        pipeline = self._pipeline
        kind = "a generator" if pipeline.by_python else "a pipeline"
        if pipeline.stateful is not None:
            kind = type(pipeline.stateful).__name__
        return {"": kind, "batches": str(self.num_batches), "elements": str(self.element_spec)}

    @property
    def made_of(self) -> tf.data.Dataset | None:
        dataset = None if self._pipeline.by_python else self._pipeline.dataset
        return dataset if isinstance(dataset, tf.data.Dataset) else None

    def begin_epoch(self) -> None:
        self._pipeline.begin_epoch()

    def skip_epochs(self, count: int) -> None:
        self._pipeline.skip_epochs(count)

    def end_epoch(self) -> None:
        self._pipeline.end_epoch()

    def close(self, opened: list[Any] | None = None) -> None:
        self._pipeline.close()
        iterators = [] if opened is None else opened
        iterators += [self._first, self._kept]
        self._first = self._kept = None
        end_iterators(iterators)


def _save_iterator(iterator: Any, *, known_python: bool) -> tf.Tensor | None:
    """Returns the state of a `tf.data` iterator, variant[n], or None if Python takes part in it."""
    resource = iterator._iterator_resource
    refuse, ignore = 2, 1
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=refuse)
    except tf.errors.FailedPreconditionError as error:
        # Random operations are made anew with each iterator and need no state; Python functions have one
        # that cannot be seen.
        if "PyFunc" in str(error) and not known_python:
            return None
    except tf.errors.OpError:
        return None
    return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=ignore)


def make_feed(
    data: Arrays | Pipeline, hold_in_memory: Callable[[int], bool], preprocess: Preprocess | None = None
) -> Feed:
    """Returns what the training draws its batches from."""
    if isinstance(data, Arrays):
        known = data.dense and not (data.shuffle and row_shuffling() == "counted")
        if known and hold_in_memory(sum(map(copied_bytes, keras.tree.flatten(data.inputs)))):
            return ArrayFeed(data, preprocess)
        data = data.pipeline
    return IteratorFeed(data, preprocess)
