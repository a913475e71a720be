"""A: the variables to which the functions of a pipeline write, as they stood when its passes were made.

Such as the seeds of layers that augment. A pass that has begun is made again from there: what is drawn ahead
of the training has moved them on since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._inspection.traced import CapturedVariable

__all__ = ["DrawnVariables"]


class DrawnVariables:
    """Their values, by the number of the pass that began with them. Belongs to the training thread."""

    def __init__(self, variables: Sequence[CapturedVariable]) -> None:
        self._variables = variables
        self._values: dict[int, list[tf.Tensor]] = {}

    def note(self, number: int) -> None:
        """Takes the values for a pass that is being made."""
        self._values[number] = [
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            for variable in self._variables
        ]

    def noted(self, number: int) -> list[npt.NDArray[Any]]:
        """Returns the values of a pass, for a checkpoint."""
        return [np.array(value.numpy()) for value in self._values[number]]

    def take(self, number: int, stored: Any) -> None:
        """Takes what another process has noted of a pass."""
        self.check(stored)
        self._values[number] = [tf.constant(array) for array in stored]

    def check(self, stored: Any) -> None:
        """Makes sure that values may be these variables'."""
        arrays = stored if isinstance(stored, list) else []
        if len(arrays) != len(self._variables) or not all(map(_fits, self._variables, arrays)):
            raise ValueError("the variables of its pipeline are invalid")

    def put_back(self, number: int) -> None:
        """Has the variables stand as a pass was made; nobody may draw."""
        if number not in self._values:
            raise ValueError("it does not say where the variables of its pipeline stood as the pass began")
        for variable, value in zip(self._variables, self._values[number], strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    def forget(self, number: int) -> None:
        """Says that nobody will go back to before a pass."""
        self._values = {each: values for each, values in self._values.items() if each >= number}


def _fits(variable: CapturedVariable, array: Any) -> bool:
    """Whether a variable can have such a value; a shape that it leaves open is that of any."""
    if not isinstance(array, np.ndarray) or array.dtype != variable.dtype.as_numpy_dtype:
        return False
    return bool(variable.shape.is_compatible_with(array.shape))
