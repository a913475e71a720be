"""Checks of the arguments of `fit` and `evaluate`, by the names that Keras gives them. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from overlap_train._support.arguments import require_flag, shown
from overlap_train._support.numbers import require_count, require_real

Preprocess: TypeAlias = Callable[..., Any]
"""Takes and returns the parts of a batch, `x`, `x, y` or `x, y, sample_weight`, as for `Dataset.map`."""

Verbosity = Literal["auto", 0, 1, 2]

__all__ = [
    "Preprocess",
    "Verbosity",
    "check_evaluate",
    "check_fit",
    "check_frequency",
    "epoch_selector",
    "require_verbosity",
]


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
) -> None:
    """Refuses values that cannot be meant, with the names of `keras.Model.fit`.

    `epochs=0` is taken: as in Keras, nothing is trained.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    require_count("epochs", epochs, minimum=0)
    require_count("initial_epoch", initial_epoch, minimum=0)
    for name, value in (
        ("batch_size", batch_size),
        ("validation_batch_size", validation_batch_size),
        ("steps_per_epoch", steps_per_epoch),
        ("validation_steps", validation_steps),
    ):
        if value is not None:
            require_count(name, value, minimum=1)
    split = require_real("validation_split", validation_split, infinite=True)
    if not 0.0 <= split < 1.0:
        raise ValueError(f"validation_split must be at least 0 and below 1; got {shown(validation_split)}")
    require_verbosity(verbose)
    if not (isinstance(shuffle, str) and str(shuffle) == "batch"):
        try:
            require_flag("shuffle", shuffle)
        except TypeError as error:
            raise ValueError(f"shuffle must be True, False or 'batch'; got {shown(shuffle)}") from error


def check_frequency(validation_freq: Any) -> None:
    """Refuses a `validation_freq` that Keras refuses at its first validation, or that cannot be meant.

    Raises:
        TypeError: for a number in it of the wrong type.
        ValueError: if it is neither an integer nor a list, in the words of Keras; or for a number below 1.
    """
    if not isinstance(validation_freq, (int, list)):
        raise ValueError(
            f"Expected `validation_freq` to be a list or int. Received: validation_freq={validation_freq} of "
            f"the type {type(validation_freq)}."
        )
    epoch_selector(validation_freq)


def require_verbosity(verbose: Any) -> None:
    """Raises ValueError unless `verbose` is what Keras takes for it."""
    known = isinstance(verbose, (str, bool, int, float, np.generic)) and verbose in ("auto", 0, 1, 2)
    if not known:
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2; got {shown(verbose)}")


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> None:
    """Refuses values that cannot be meant, with the names of `keras.Model.evaluate`.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    if steps is not None:
        require_count("steps", steps, minimum=1)
    check_fit(batch_size=batch_size, verbose=verbose)


def epoch_selector(validation_freq: Any, *, name: str = "validation_freq") -> Callable[[int], bool]:
    """Returns whether an epoch, counted from 0, is validated.

    Args:
        validation_freq: every how many epochs, or a sequence of epochs counted from 1.
        name: of the argument, for messages.

    Raises:
        TypeError: if it is neither.
        ValueError: if a number in it is below 1, or, in the words of Keras, if it is an array or a set.
    """
    if isinstance(validation_freq, range):
        for epoch in (*validation_freq[:1], *validation_freq[-1:]):
            require_count(name, epoch, minimum=1)
        return lambda epoch: epoch + 1 in validation_freq
    is_text = isinstance(validation_freq, (str, bytes))
    if isinstance(validation_freq, Sequence) and not is_text:
        chosen = {require_count(name, epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in chosen
    if isinstance(validation_freq, Iterable) and not is_text and getattr(validation_freq, "ndim", True):
        raise ValueError(
            f"Expected `{name}` to be a list or int. Received: {name}={shown(validation_freq)} of the type "
            f"{type(validation_freq)}."
        )
    every = require_count(name, validation_freq, minimum=1)
    return lambda epoch: (epoch + 1) % every == 0
