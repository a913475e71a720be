"""Checks of the arguments of `fit` and `evaluate`, by Keras's names, and refusals of calls.

A refusal is an error about the arguments of a call, raised before the call has done anything. The caller may
then pass the call on, as `routed()` does to Keras. Any thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from overlap_train._support.arguments import (
    is_text,
    require_count,
    require_flag,
    require_real,
    scalar,
    short_repr,
    text_of,
)

Preprocess: TypeAlias = Callable[..., Any]
"""Takes and returns the parts of a batch, `x`, `x, y` or `x, y, sample_weight`, as for `Dataset.map`."""

Verbosity = Literal["auto", 0, 1, 2]


class FitNumbers(NamedTuple):
    """Arguments of `keras.Model.fit` as numbers of Python: the code that uses them takes no tensors."""

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
    """Return arguments of `keras.Model.fit` as numbers of Python; raise TypeError or ValueError for bad ones.

    With `epochs=0` nothing is trained, as in Keras.
    """
    return FitNumbers(
        epochs=require_count("epochs", epochs, minimum=0),
        initial_epoch=require_count("initial_epoch", initial_epoch, minimum=0),
        batch_size=_count_or_none("batch_size", batch_size),
        validation_batch_size=_count_or_none("validation_batch_size", validation_batch_size),
        steps_per_epoch=_count_or_none("steps_per_epoch", steps_per_epoch),
        validation_steps=_count_or_none("validation_steps", validation_steps),
        validation_split=_fraction(validation_split),
        verbose=require_verbosity(verbose),
        shuffle=_shuffle(shuffle),
    )


def _count_or_none(name: str, value: Any) -> int | None:
    return None if value is None else require_count(name, value, minimum=1)


def _fraction(value: Any) -> float:
    if value is None:  # as in Keras
        return 0.0
    split = require_real("validation_split", value, infinite=True)
    if not 0.0 <= split < 1.0:
        raise ValueError(f"validation_split must be at least 0 and below 1; got {short_repr(value)}")
    return split


def _shuffle(value: Any) -> bool | str:
    if is_text(value, "batch"):
        return "batch"
    try:
        return require_flag("shuffle", value)
    except TypeError as error:
        raise ValueError(f"shuffle must be True, False or 'batch'; got {short_repr(value)}") from error


def check_class_weight(class_weight: Any) -> None:
    """Raise TypeError for a `class_weight` in which Keras cannot look up a class."""
    if class_weight is not None and not hasattr(class_weight, "get"):
        raise TypeError(
            "class_weight must be a dict of classes and their weights, such as {0: 1.0, 1: 2.5}, or None; "
            f"got {short_repr(class_weight)}"
        )


def check_frequency(validation_freq: Any) -> None:
    """Raise ValueError for a `validation_freq` that Keras refuses at its first validation, or below 1."""
    if not isinstance(validation_freq, (int, list)):
        raise ValueError(
            f"Expected `validation_freq` to be a list or int. Received: validation_freq="
            f"{text_of(validation_freq)} of the type {type(validation_freq)}."
        )
    epoch_selector(validation_freq)


def require_verbosity(verbose: Any) -> Any:
    """Return "auto", 0, 1 or 2; raise ValueError for anything that Keras does not take as one of these."""
    number = scalar(verbose)
    if is_text(number, "auto"):
        return "auto"
    if isinstance(number, (int, float)) and number in (0, 1, 2):
        return int(number)
    raise ValueError(f"verbose must be 'auto', 0, 1 or 2; got {short_repr(verbose)}")


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> dict[str, Any]:
    """Return arguments of `keras.Model.evaluate`; raise TypeError or ValueError for bad ones."""
    return {
        "steps": _count_or_none("steps", steps),
        "batch_size": _count_or_none("batch_size", batch_size),
        "verbose": require_verbosity(verbose),
    }


def epoch_selector(validation_freq: Any, *, name: str = "validation_freq") -> Callable[[int], bool]:
    """Return a function that says whether an epoch, counted from 0, is validated."""
    if isinstance(validation_freq, range):
        for epoch in (*validation_freq[:1], *validation_freq[-1:]):
            require_count(name, epoch, minimum=1)
        return lambda epoch: epoch + 1 in validation_freq
    is_plain = isinstance(validation_freq, (str, bytes))
    if isinstance(validation_freq, Sequence) and not is_plain:
        epochs = {require_count(name, epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in epochs
    if isinstance(validation_freq, Iterable) and not is_plain and getattr(validation_freq, "ndim", True):
        raise ValueError(
            f"Expected `{name}` to be a list or int. Received: {name}={short_repr(validation_freq)} of the "
            f"type {type(validation_freq)}."
        )
    every = require_count(name, validation_freq, minimum=1)
    return lambda epoch: (epoch + 1) % every == 0


_OWNER = "_overlap_train_refused_by"


class Refusing:
    """Marks the TypeErrors and ValueErrors of its block as refusals by an owner.

    With the owner, since another one may refuse a call inside one of its callbacks.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (TypeError, ValueError)):
            with contextlib.suppress(Exception):  # of an error whose class allows no attributes
                setattr(error, _OWNER, _mark_of(self._owner))


def is_refusal_of(owner: object, error: BaseException) -> bool:
    """Whether an exception is the refusal of a call by `owner`."""
    return getattr(error, _OWNER, None) == _mark_of(owner)


def _mark_of(owner: object) -> str:
    """Return a text that identifies a living object: as a text, since the error may be pickled."""
    return f"{os.getpid()} {id(owner)}"
