"""Checks of the arguments of `fit` and `evaluate`, by Keras's names, and refusals of calls.

A refusal is an error about the arguments of a call, raised before the call has done anything. The caller may
then pass the call on, as `routed()` does to Keras. Any thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from overlap_train._support.arguments import (
    freeze,
    is_text,
    optional,
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


@dataclass(frozen=True, kw_only=True)
class FitNumbers:
    """Arguments of `keras.Model.fit` as numbers of Python; raise TypeError or ValueError for bad ones.

    With `epochs=0` nothing is trained, as in Keras.
    """

    epochs: int = 1
    initial_epoch: int = 0
    batch_size: int | None = None
    validation_batch_size: int | None = None
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_split: float = 0.0
    verbose: Verbosity = "auto"
    shuffle: bool | str = True

    def __post_init__(self) -> None:
        freeze(
            self,
            epochs=require_count("epochs", self.epochs, minimum=0),
            initial_epoch=require_count("initial_epoch", self.initial_epoch, minimum=0),
            validation_split=_fraction(self.validation_split),
            verbose=require_verbosity(self.verbose),
            shuffle=_shuffle(self.shuffle),
        )
        for name in ("batch_size", "validation_batch_size", "steps_per_epoch", "validation_steps"):
            freeze(self, **{name: optional(require_count, name, getattr(self, name), minimum=1)})


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


def epoch_selector(validation_freq: Any, *, name: str = "validation_freq") -> Callable[[int], bool]:
    """Return a function that says whether an epoch, counted from 0, is validated."""
    if isinstance(validation_freq, Sequence) and not isinstance(validation_freq, (str, bytes)):
        if isinstance(validation_freq, range):  # perhaps too long to be listed
            return lambda epoch: epoch + 1 in validation_freq
        epochs = {require_count(name, epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in epochs
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
