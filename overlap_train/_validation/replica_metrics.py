"""How the metrics of several replicas are set and read while a training or a validation runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._snapshot import StateVariable, counts_apart


def counted(variables: Iterable[keras.Variable], *, by_first: bool) -> contextlib.ExitStack:
    """Let metrics be set and read as the first replica counts them, or as Keras does, until closed.

    Keras divides what it sets by the number of replicas and adds up what it reads, which is right only for
    sums of what all of them count. Afterwards they are read as before, with the same values (`_aggregation`).
    """
    undo = contextlib.ExitStack()
    for variable in filter(counts_apart, variables):
        undo.callback(_aggregate, variable, variable.value.aggregation)
        if by_first:  # each copy of a new variable has its whole initial value
            variable.value._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        else:
            _aggregate(variable, variable.value.values[0].aggregation)
    return undo


def _aggregate(variable: Any, aggregation: tf.VariableAggregation) -> None:
    if variable.value.aggregation != aggregation:
        value = StateVariable.of_keras(variable).read()
        variable.value._aggregation = aggregation
        StateVariable.of_keras(variable).assign(value)
