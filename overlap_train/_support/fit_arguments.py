"""Checks of the arguments of `fit` and `evaluate`, by the names that Keras gives them, and refusals of calls.

A refusal is what is raised of the arguments of a call before anything of it has been begun. Code that has
made the call for somebody else, as `routed()` does for Keras, may then let another one do it. Any thread.
"""

from __future__ import annotations

import contextlib
import numbers
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from overlap_train._support.arguments import (
    is_text,
    require_count,
    require_flag,
    require_real,
    scalar,
    short_repr,
)

__all__ = [
    "FitNumbers",
    "Preprocess",
    "Refusing",
    "Verbosity",
    "check_class_weight",
    "check_evaluate",
    "check_fit",
    "check_frequency",
    "epoch_selector",
    "is_refusal_of",
    "require_verbosity",
]


Preprocess: TypeAlias = Callable[..., Any]
"""Takes and returns the parts of a batch, `x`, `x, y` or `x, y, sample_weight`, as for `Dataset.map`."""

Verbosity = Literal["auto", 0, 1, 2]


class FitNumbers(NamedTuple):
    """Arguments of `keras.Model.fit` as Python has them: what counts with them takes no tensors."""

    epochs: int
    initial_epoch: int
    batch_size: int | None
    validation_batch_size: int | None
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_split: float
    verbose: Verbosity
    shuffle: bool | str


def check_fit(
    *,
    epochs: Any = 1,
    initial_epoch: Any = 0,
    batch_size: Any = None,
    validation_batch_size: Any = None,
    steps_per_epoch: Any = None,
    validation_steps: Any = None,
    validation_split: Any = 0.0,
    verbose: Any = "auto",
    shuffle: Any = True,
) -> FitNumbers:
    """Refuse values that cannot be meant, with the names of `keras.Model.fit`; return the others by name.

    They come back as numbers of Python: what is counted with them later takes no arrays or tensors.
    `epochs=0` is taken: as in Keras, nothing is trained.
    """
    return FitNumbers(
        epochs=require_count("epochs", epochs, minimum=0),
        initial_epoch=require_count("initial_epoch", initial_epoch, minimum=0),
        batch_size=_rows("batch_size", batch_size),
        validation_batch_size=_rows("validation_batch_size", validation_batch_size),
        steps_per_epoch=_count_or_none("steps_per_epoch", steps_per_epoch),
        validation_steps=_count_or_none("validation_steps", validation_steps),
        validation_split=_fraction(validation_split),
        verbose=require_verbosity(verbose),
        shuffle=_shuffle(shuffle),
    )


def _count_or_none(name: str, value: Any) -> int | None:
    return None if value is None else require_count(name, value, minimum=1)


def _rows(name: str, value: Any) -> int | None:
    """Return the rows of a batch; TensorFlow, which counts them, takes them from a tensor of any type."""
    number = scalar(value)
    is_tensor = number is not value and not isinstance(value, (np.ndarray, np.generic))
    if is_tensor and isinstance(number, float) and number.is_integer():
        number = int(number)
    return _count_or_none(name, number if is_tensor and isinstance(number, int) else value)


def _fraction(value: Any) -> float:
    if value is None:  # as by Keras, which asks only whether there is one
        return 0.0
    split = require_real("validation_split", scalar(value), infinite=True)
    if not 0.0 <= split < 1.0:
        raise ValueError(f"validation_split must be at least 0 and below 1; got {short_repr(value)}")
    return split


def _shuffle(value: Any) -> bool | str:
    if is_text(value, "batch"):
        return "batch"
    number = scalar(value)
    try:
        return require_flag(
            "shuffle", int(number) if isinstance(number, float) and number in (0, 1) else value
        )
    except TypeError as error:
        raise ValueError(f"shuffle must be True, False or 'batch'; got {short_repr(value)}") from error


def check_class_weight(class_weight: Any) -> None:
    """Raise TypeError for a `class_weight` in which Keras could look up no class."""
    if class_weight is not None and not hasattr(class_weight, "get"):
        raise TypeError(
            "class_weight must be a dict of classes and their weights, such as {0: 1.0, 1: 2.5}, or None; "
            f"got {short_repr(class_weight)}"
        )


def check_frequency(validation_freq: Any) -> None:
    """Refuse a `validation_freq` that Keras refuses at its first validation, or that cannot be meant."""
    if not isinstance(validation_freq, (int, list)):
        try:
            given = str(validation_freq)
        except Exception:
            given = short_repr(validation_freq)
        raise ValueError(
            f"Expected `validation_freq` to be a list or int. Received: validation_freq={given} of the type "
            f"{type(validation_freq)}."
        )
    epoch_selector(validation_freq)


def require_verbosity(verbose: Any) -> Any:
    """Return "auto", 0, 1 or 2; raise ValueError for what Keras does not take for it."""
    number = scalar(verbose)
    if is_text(number, "auto"):
        return "auto"
    try:
        if isinstance(number, (bool, numbers.Number, np.generic)) and number in (0, 1, 2):
            return int(number)
    except Exception:  # of a class of the user's that acts as a number
        pass
    raise ValueError(f"verbose must be 'auto', 0, 1 or 2; got {short_repr(verbose)}")


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> dict[str, Any]:
    """Refuse values that cannot be meant, with the names of `keras.Model.evaluate`; return the others."""
    return {
        "steps": _count_or_none("steps", steps),
        "batch_size": _rows("batch_size", batch_size),
        "verbose": require_verbosity(verbose),
    }


def epoch_selector(validation_freq: Any, *, name: str = "validation_freq") -> Callable[[int], bool]:
    """Return what tells of an epoch, counted from 0, whether it is validated."""
    if isinstance(validation_freq, range):
        for epoch in (*validation_freq[:1], *validation_freq[-1:]):
            require_count(name, epoch, minimum=1)
        return lambda epoch: epoch + 1 in validation_freq
    is_text = isinstance(validation_freq, (str, bytes))
    if isinstance(validation_freq, Sequence) and not is_text:
        chosen = {require_count(name, epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in chosen
    if isinstance(validation_freq, Iterable) and not is_text and _has_items(validation_freq):
        raise ValueError(
            f"Expected `{name}` to be a list or int. Received: {name}={short_repr(validation_freq)} of the "
            f"type {type(validation_freq)}."
        )
    every = require_count(name, validation_freq, minimum=1)
    return lambda epoch: (epoch + 1) % every == 0


def _has_items(value: Any) -> bool:
    """Whether what can be iterated over is no number, as an array without dimensions is."""
    try:
        return bool(getattr(value, "ndim", True))
    except Exception:  # whatever an object of the user's raises, it is no number
        return True


_OWNER = "_overlap_train_refused_by"


class Refusing:
    """Marks the TypeErrors and ValueErrors of its block as refusals.

    The owner refuses: a call within one of its callbacks may be refused by another one.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (TypeError, ValueError)):
            with contextlib.suppress(Exception):  # whose class refuses it
                setattr(error, _OWNER, _mark_of(self._owner))


def is_refusal_of(owner: object, error: BaseException) -> bool:
    """Whether an exception says that `owner` has refused a call and begun nothing."""
    return getattr(error, _OWNER, None) == _mark_of(owner)


def _mark_of(owner: object) -> str:
    """Return what tells an object from all others that live. Plain text: the error may be sent elsewhere."""
    return f"{os.getpid()} {id(owner)}"
