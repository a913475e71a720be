"""Checks of what a user passes: each bad value is refused before anything starts, saying what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras

from overlap_train import _keras

Verbosity = Literal["auto", 0, 1, 2]

__all__ = [
    "Verbosity",
    "check_evaluate",
    "check_fit",
    "epoch_selector",
    "require_count",
    "require_instance",
    "require_model",
]


def require_model(model: object) -> None:
    """Raises TypeError unless `model` is a Keras model, or a layer that Keras can train."""
    if isinstance(model, keras.Model) or _keras.is_trainer(model):
        return
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise TypeError(
            f"model must be a keras.Model; {type(model).__name__} is one of tf_keras, that is Keras 2: "
            "build it with Keras 3 (import keras), and do not set TF_USE_LEGACY_KERAS"
        )
    raise TypeError(f"model must be a keras.Model; got {type(model).__name__}")


def require_instance(name: str, value: object, kind: type) -> None:
    """Raises TypeError unless `value` is None or of that kind."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} or None; got {type(value).__name__}")


def require_count(name: str, value: Any, *, minimum: int) -> int:
    """Returns `value` as an int, or raises TypeError or ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer; got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {value}")
    return int(value)


def check_fit(
    *,
    epochs: Any = 1,
    initial_epoch: Any = 0,
    batch_size: Any = None,
    validation_batch_size: Any = None,
    steps_per_epoch: Any = None,
    validation_steps: Any = None,
    validation_split: Any = 0.0,
    validation_freq: Any = 1,
    verbose: Any = "auto",
    shuffle: Any = True,
) -> None:
    """Refuses values that cannot be meant, with the names of `keras.Model.fit`.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    require_count("epochs", epochs, minimum=1)
    require_count("initial_epoch", initial_epoch, minimum=0)
    for name, value in (
        ("batch_size", batch_size),
        ("validation_batch_size", validation_batch_size),
        ("steps_per_epoch", steps_per_epoch),
        ("validation_steps", validation_steps),
    ):
        if value is not None:
            require_count(name, value, minimum=1)
    if isinstance(validation_split, bool) or not isinstance(validation_split, (int, float)):
        raise TypeError(f"validation_split must be a number; got {validation_split!r}")
    if not 0.0 <= validation_split < 1.0:
        raise ValueError(f"validation_split must be at least 0 and below 1; got {validation_split}")
    if verbose not in ("auto", 0, 1, 2):
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2; got {verbose!r}")
    if not (isinstance(shuffle, bool) or shuffle == "batch"):
        raise ValueError(f"shuffle must be True, False or 'batch'; got {shuffle!r}")
    epoch_selector(validation_freq)


def check_evaluate(*, batch_size: Any, steps: Any, verbose: Any) -> None:
    """Likewise, with the names of `keras.Model.evaluate`.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """
    if steps is not None:
        require_count("steps", steps, minimum=1)
    check_fit(batch_size=batch_size, verbose=verbose)


def epoch_selector(validation_freq: Any) -> Callable[[int], bool]:
    """Returns whether an epoch, counted from 0, is validated.

    Args:
        validation_freq: every how many epochs, or a sequence of epochs counted from 1.

    Raises:
        TypeError: if it is neither.
        ValueError: if a number in it is below 1.
    """
    if isinstance(validation_freq, Sequence) and not isinstance(validation_freq, str):
        chosen = {require_count("validation_freq", epoch, minimum=1) for epoch in validation_freq}
        return lambda epoch: epoch + 1 in chosen
    every = require_count("validation_freq", validation_freq, minimum=1)
    return lambda epoch: (epoch + 1) % every == 0
