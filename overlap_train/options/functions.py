"""Options of an evaluation function, and what it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import keras
import numpy as np

from overlap_train._support.arguments import (
    freeze,
    require_callable,
    require_mapping,
    short_repr,
)
from overlap_train._support.fit_arguments import epoch_selector

__all__ = [
    "EvaluationFunction",
    "metric_values",
    "require_functions",
    "split_functions",
]


@dataclass(frozen=True)
class EvaluationFunction:
    """Wrap a function that evaluates a model, with its options.

    Pass it in `ValidationPolicy(functions={"bleu": ...})`, or in a dict of validation sets.

    Attributes:
        function: called with a model that has the weights of an epoch's end. It returns a number, or a dict
            of numbers by name, which may be nested. The model is private to the function: changes to it do
            not reach the training. The function is called for one epoch after the other, always on the same
            thread.
        freq: every how many epochs, or a sequence of epochs counted from 1; None means the `validation_freq`
            of the `fit`.
        clone: a function without arguments that makes a new model of the same structure, for models that
            `get_config` cannot copy. It is called when a `fit` begins; the weights do not matter.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    function: Callable[[keras.Model], Any]
    _: KW_ONLY
    freq: int | Sequence[int] | None = None
    clone: Callable[[], keras.Model] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.function, EvaluationFunction):
            raise TypeError("function must be a function of a model; got an EvaluationFunction")
        require_callable("function", self.function)
        if self.freq is not None:
            epoch_selector(self.freq, name="freq")
        require_callable("clone", self.clone, optional=True)
        freeze(
            self,
            freq=self.freq if self.freq is None or isinstance(self.freq, Sequence) else int(self.freq),
        )


def require_functions(name: str, value: Any) -> Mapping[str, EvaluationFunction]:
    """Return evaluation functions by name, plain functions wrapped, or raise TypeError or ValueError."""
    expected = 'a mapping of names to functions, such as {"bleu": function}, or None'
    functions = {}
    for key, function in require_mapping(name, value, expected=expected).items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must be {expected}; got {short_repr(key)} for a name")
        if not key:
            raise ValueError(f"{name} must be {expected}; got a name that is empty")
        if not isinstance(function, EvaluationFunction):
            if isinstance(function, type) or not callable(function):
                raise TypeError(
                    f"{name}[{short_repr(key)}] must be a function of a model; got {short_repr(function)}"
                )
            function = EvaluationFunction(function)
        functions[str(key)] = function
    return functions


def split_functions(
    validation_data: Any, functions: Mapping[str, Any] | None, is_set: Callable[[Any], bool]
) -> tuple[Any, dict[str, EvaluationFunction]]:
    """Take the evaluation functions out of `fit`'s `validation_data`; return the rest, and all by name.

    `functions` are those of the policy, which come first. `is_set` says whether a value could be a validation
    set of its own. TypeError and ValueError say what has no name, or a name that another has.
    """
    if isinstance(validation_data, EvaluationFunction):
        raise TypeError(
            "validation_data is an EvaluationFunction without a name; pass a dict such as "
            '{"bleu": EvaluationFunction(...)}'
        )
    functions = {} if functions is None else require_functions("functions", functions)
    data = validation_data if isinstance(validation_data, dict) else {}
    others = {name: value for name, value in data.items() if isinstance(value, EvaluationFunction)}
    rest = {name: value for name, value in data.items() if name not in others}
    inputs = {name: value for name, value in rest.items() if not is_set(value)}  # of a single set
    for name, value in inputs.items() if others else ():
        raise TypeError(
            f"validation_data[{short_repr(name)}] stands with an EvaluationFunction and must be a validation "
            f"set: a tuple of arrays, a dataset or a ValidationSet; got {short_repr(value)}"
        )
    for name in functions:
        if name in data and not inputs:
            raise ValueError(f"validation_data and functions both name {name!r}; give one another name")
    left = (rest or None) if others else validation_data
    return left, {**functions, **require_functions("validation_data", others)}


def metric_values(returned: Any) -> dict[str, float]:
    """Return what an evaluation function returned as numbers by name; a single number has the name "".

    Nested dicts are flattened, the names joined by "_". What is no number raises TypeError, a name that comes
    twice ValueError.
    """
    values: dict[str, float] = {}
    _collect(returned, "", values)
    return values


def _collect(value: Any, name: str, values: dict[str, float]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str) or not key:
                raise TypeError(f"an evaluation function names its values by strings; got {short_repr(key)}")
            _collect(inner, f"{name}_{key}" if name else key, values)
        return
    number = _as_float(value)
    if number is None:
        where = f" for {name!r}" if name else ""
        raise TypeError(
            f"an evaluation function returns a number or a dict of numbers; got {short_repr(value)} of type "
            f"{type(value).__name__}{where}"
        )
    if name in values:
        raise ValueError(f"an evaluation function returned two values of the name {name!r}")
    values[name] = number


def _as_float(value: Any) -> float | None:
    """Return a scalar of Python, NumPy, TensorFlow or Keras as a float, None for anything else."""
    if value is None or isinstance(value, (str, bytes, list, tuple, set)) or np.ma.is_masked(value):
        return None  # what is masked has no value
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        # "V" without fields: numbers that NumPy has no type for, such as bfloat16.
        if array.ndim or array.dtype.kind not in "biufV" or array.dtype.names is not None:
            return None
        return float(array)
    except Exception:  # objects of others raise anything here
        return None
