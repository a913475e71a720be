"""The validation sets of a `fit` or an `evaluate` as given, by name; each is read when it is due."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import keras
import tensorflow as tf

from overlap_train._data.pipeline import cache_files, reads_files
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import ValidationSource
from overlap_train._keras import data as keras_data
from overlap_train._keras import training as keras_training
from overlap_train._keras.models import looks_beforehand
from overlap_train._support import fit_arguments
from overlap_train._support.arguments import short_repr
from overlap_train._support.threads import in_background
from overlap_train.errors import ValidationTimeoutError
from overlap_train.options.validation import ValidationSet


def named_sets(validation_data: Any, default: ValidationSet) -> dict[str, ValidationSet]:
    """Returns the validation sets by name; a single one has the name "".

    A dict means several sets if each value could be a `validation_data` of its own: a tuple, a dataset, a
    generator or a `ValidationSet`. A dict of arrays is one set's inputs by name, as in Keras.
    """
    if validation_data is None:
        return {}
    if isinstance(validation_data, ValidationSet):
        raise TypeError(
            "validation_data is a ValidationSet without a name; pass a dict such as "
            '{"clean": ValidationSet(...)}'
        )
    several = isinstance(validation_data, dict)
    if several and all(data is None or is_set(data) for data in validation_data.values()):
        for name, data in validation_data.items():
            if (data.data if isinstance(data, ValidationSet) else data) is None:
                raise TypeError(f"validation_data[{name!r}] is None; leave this set out, or pass its data")
    if not several or not all(map(is_set, validation_data.values())):
        return {"": replace(default, data=validation_data)}
    if not validation_data:
        raise ValueError("validation_data is an empty dict; pass at least one set, or None")
    sets = {}
    for name, data in validation_data.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of validation sets must be strings; got {short_repr(name)}")
        if not name:
            raise ValueError("the name of a validation set must not be empty")
        sets[name] = data if isinstance(data, ValidationSet) else replace(default, data=data)
        fit_arguments.epoch_selector(sets[name].freq)
    return sets


def is_set(value: Any) -> bool:
    """Whether a value in a dict of `validation_data` is a validation set of its own."""
    kinds = (tuple, ValidationSet, tf.data.Dataset, keras.utils.PyDataset)
    return isinstance(value, kinds) or hasattr(value, "__next__")


_R = TypeVar("_R")


@dataclass(eq=False)
class ValidationSources:
    """The validation sets, which are kept however often their evaluators are built. On the training thread.

    No file in `written` may be read before the training's first pass, which writes it, has ended. Others may
    be `rewritten` between two validations, so that batches that are read from files are not kept.
    """

    _model: keras.Model
    _sets: Mapping[str, ValidationSet]
    _: KW_ONLY
    now: bool = True
    python_now: bool = True
    device: str | None = None
    written: frozenset[str] = frozenset()
    rewritten: Callable[[], bool] = lambda: False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        self.begun: set[str] = set()  # the sets of which a validation has been due
        self._steps: dict[str, int | None] = {}  # of those that have been asked for
        unpack = keras.utils.unpack_x_y_sample_weight
        self._data = {name: unpack(each.data) for name, each in self._sets.items()}
        self._sources: dict[str, ValidationSource] = {}  # what has been looked at

    def steps(self, name: str) -> int | None:
        """Returns how many batches a validation is to have, as Keras rounds them; None for all."""
        if name not in self._steps:
            steps = keras_training.capped_steps(self._sets[name].steps)
            group = keras_training.steps_per_execution(self._model)
            self._steps[name] = None if steps is None else -(-steps // group) * group
        return self._steps[name]

    def of(self, name: str) -> ValidationSource:
        """Returns a set's data."""
        if name not in self._sources:
            data = self._data[name]
            by_python = keras_data.is_made_by_python(*data)
            recognize = functools.partial(
                keras_data.recognize,
                *data,
                role="validation",
                batch_size=self._sets[name].batch_size,
                steps=self.steps(name),
                looked_at=looks_beforehand(self._model),
            )
            self._sources[name] = ValidationSource(
                functools.partial(self.in_time, recognize, name),
                by_python=by_python,
                now=self.now or (by_python and self.python_now),
                device=self.device,
                keeps=not (self.written and self.written & cache_files(data[0]))
                and not (isinstance(data[0], tf.data.Dataset) and reads_files(data[0]) and self.rewritten()),
            )
        return self._sources[name]

    def for_keras(self, name: str) -> tuple[Any, Any, Any]:
        """Returns what `evaluate` is given as data; batches that have been drawn already are not lost."""
        source = self._sources.get(name)
        if source is None or source.layout is not None:
            return self._data[name]
        return source.pipeline.adapter, None, None

    def in_time(self, read: Callable[[], _R], name: str) -> _R:
        """Draws the first batches of a set by a function; under a limit on a thread that may stay behind."""
        if self.timeout_s is None:
            return read()
        future = in_background(read, "opens-validation-data", daemon=True)
        try:
            return future.result(self.timeout_s)
        except TimeoutError:
            if future.done():
                raise
        of = f" of set {name!r}" if name else ""
        raise ValidationTimeoutError(
            f"reading the first batches of the validation data{of} did not end within timeout_s="
            f"{self.timeout_s:g}: check what the data waits for, or raise ValidationPolicy(timeout_s=...)"
        )

    def expected(self, name: str) -> int | None:
        """Returns how many batches a validation will have, as far as that is known without drawing any."""
        steps, source = self.steps(name), self.of(name)
        if steps is not None or source.waits:
            return steps
        if source.layout is not None:
            return -(-source.layout.num_samples // source.layout.batch_size)
        return source.pipeline.num_batches

    def asked(self, name: str) -> int | None:
        """Returns how many batches Keras says a validation is to have, before groups of steps are whole."""
        expected, steps = self.expected(name), self._sets[name].steps
        return expected if not steps or expected is None else min(steps, expected)

    def least(self, name: str) -> int | None:
        """Returns how many batches do for the number that was asked for: the last group may have but one."""
        steps, group = self._sets[name].steps, keras_training.steps_per_execution(self._model)
        return None if not steps else (steps - 1) // group * group + 1

    def last_count(self, name: str) -> int:
        """Returns how many batches the last validation has had, where that was not known beforehand."""
        return getattr(self.of(name).batches, "last_count", 0)

    def drawing(self) -> dict[str, StreamedBatches]:
        """Returns the batches, by the set's name, of which each pass moves what the next one draws from."""
        batches = {name: source.batches for name, source in self._sources.items()}
        return {name: b for name, b in batches.items() if isinstance(b, StreamedBatches) and b.draws}

    def is_only_once(self, name: str) -> bool:
        """Whether the batches of a set can be drawn once, as those of a generator."""
        return hasattr(self._data[name][0], "__next__")

    def read(self, epoch: int, waiting: Collection[str] = ()) -> bool:
        """Reads what an epoch's validation needs; returns whether that is what was known of it.

        Of the sets in `waiting` nothing has been looked at.
        """
        due = [name for name in self._sets if fit_arguments.epoch_selector(self._sets[name].freq)(epoch)]
        self.begun.update(due)
        sources = [self.of(name) for name in due if name in self._sources or name in waiting]
        as_known = [source.read() for source in sources if not (source.is_read or source.left_to_keras)]
        return all(as_known)

    def close(self) -> None:
        """Ends what makes batches for them. Idempotent."""
        for source in self._sources.values():
            source.close()
