"""What counts as one validation set or as several, by name."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from overlap_train._support import fit_arguments
from overlap_train._support.arguments import shown
from overlap_train.options.validation import ValidationSet

__all__ = ["is_set", "named_sets"]


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
    _refuse_missing(validation_data)
    if not isinstance(validation_data, dict) or not all(map(is_set, validation_data.values())):
        return {"": _with_data(default, validation_data)}
    if not validation_data:
        raise ValueError("validation_data is an empty dict; pass at least one set, or None")
    sets = {}
    for name, data in validation_data.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of validation sets must be strings; got {shown(name)}")
        if not name:
            raise ValueError("the name of a validation set must not be empty")
        sets[name] = data if isinstance(data, ValidationSet) else _with_data(default, data)
        fit_arguments.epoch_selector(sets[name].freq)
    return sets


def is_set(value: Any) -> bool:
    """Whether a value in a dict of `validation_data` is a validation set of its own."""
    kinds = (tuple, ValidationSet, tf.data.Dataset, keras.utils.PyDataset)
    return isinstance(value, kinds) or hasattr(value, "__next__")


def _with_data(default: ValidationSet, data: Any) -> ValidationSet:
    return ValidationSet(data=data, freq=default.freq, steps=default.steps, batch_size=default.batch_size)


def _refuse_missing(validation_data: Any) -> None:
    """Raises TypeError if the data of one of several sets is None."""
    if not isinstance(validation_data, dict) or not all(
        d is None or is_set(d) for d in validation_data.values()
    ):
        return
    for name, data in validation_data.items():
        if (data.data if isinstance(data, ValidationSet) else data) is None:
            raise TypeError(f"validation_data[{name!r}] is None; leave this set out, or pass its data")
