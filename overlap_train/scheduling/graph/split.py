"""What a Keras model is to the scheduler: a graph of layers, and the functions that compute them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train.scheduling.graph.layers import LayerGraph, Port
from overlap_train.scheduling.graph.model_inputs import ModelInputs

__all__ = ["SplitModel", "spec_of", "tracing"]

tracing = threading.Lock()
"""Held while a model is traced: its layers share Python state."""


class SplitModel(ABC):
    """A Keras model and its graph."""

    varies = False  # whether a function is traced again for inputs left out or of another dtype

    def __init__(self, graph: LayerGraph, inputs: ModelInputs, outputs: Any) -> None:
        """Take a graph of single layers, and outputs nested as a call nests them."""
        self.graph = graph
        self.inputs = inputs
        self._outputs = outputs

    @abstractmethod
    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        """Return the Python function of a segment, to be traced; `whole`: its first layer in one piece."""

    @abstractmethod
    def spec(self, port: Port) -> tf.TensorSpec:
        """Return the shape, with None for the batch, and the dtype of a tensor of the graph."""

    @property
    def keeps_rows(self) -> bool:
        """Whether the first dimension of every output is the batch, so that requests can share one."""
        leaves = [leaf for leaf in keras.tree.flatten(self._outputs) if leaf is not None]
        return all(len(leaf.shape) > 0 and leaf.shape[0] is None for leaf in leaves)

    def pack(self, outputs: Sequence[Any]) -> Any:
        """Return flat outputs, nested as a call of the model nests them."""
        left = iter(outputs)
        flat = [None if leaf is None else next(left) for leaf in keras.tree.flatten(self._outputs)]
        return keras.tree.pack_sequence_as(self._outputs, flat)


def spec_of(tensor: Any) -> tf.TensorSpec:
    """Return the shape, with None for the batch, and the dtype of a symbolic tensor."""
    # A number for the whole batch has no dimension that could be the batch.
    shape = (None, *tensor.shape[1:]) if len(tensor.shape) else ()
    return tf.TensorSpec(shape, tensor.dtype)
