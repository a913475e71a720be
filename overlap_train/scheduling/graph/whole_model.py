"""A model that stays whole: what its graph does not tell, or what does not fit between two segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models
from overlap_train.scheduling.graph.calls import tensor_bytes, work_of
from overlap_train.scheduling.graph.layers import REQUEST, Layer, LayerGraph, Port
from overlap_train.scheduling.graph.model_inputs import ModelInputs
from overlap_train.scheduling.graph.split import SplitModel, tracing

__all__ = ["WholeModel"]


class WholeModel(SplitModel):
    """A graph of one layer, which calls the model."""

    def __init__(self, model: keras.Model, name: str, inputs: ModelInputs) -> None:
        self._model = model
        self._inputs = inputs
        # A layer that the graph calls with training=True keeps that only where the caller says nothing.
        says = models.overriding_class(model, "__call__") is None and not models.trains_by_itself(model)
        self._kwargs = {"training": False} if says else {}
        outputs = self._traced_outputs(name)
        specs = [spec for spec in keras.tree.flatten(outputs) if spec is not None]
        self._specs = {Port(REQUEST, n): spec for n, spec in enumerate(inputs.specs)}
        self._specs |= {Port(0, n): spec for n, spec in enumerate(specs)}
        layer = Layer(
            f"{name}/all",
            work_of(model, inputs.specs, specs),
            tuple(Port(REQUEST, n) for n in range(len(inputs.specs))),
            tuple(map(tensor_bytes, specs)),
        )
        graph = LayerGraph(
            [layer],
            [Port(0, n) for n in range(len(specs))],
            input_bytes=[tensor_bytes(x) for x in inputs.specs],
            name=name,
        )
        super().__init__(graph, inputs, outputs)
        self.varies = inputs.varies

    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port], whole: bool
    ) -> Callable[..., list[Any]]:
        """Return the call of the model; see `SplitModel.function`."""

        def segment(*args: Any) -> list[Any]:
            return [value for value in keras.tree.flatten(self._call(*args)) if value is not None]

        return segment

    def spec(self, port: Port) -> tf.TensorSpec:
        """Return the specification of an input or output; see `SplitModel.spec`."""
        return self._specs[port]

    def _call(self, *args: Any) -> Any:
        return self._model(self._inputs.pack(args), **self._kwargs)

    def _traced_outputs(self, name: str) -> Any:
        """Return the specifications of what a call returns, nested as it is.

        Keras's own symbolic call would follow the graph of a functional model, whatever its `call` does.
        """
        with tracing:
            traced = tf.function(self._call, autograph=False).get_concrete_function(*self._inputs.specs)
        return keras.tree.map_structure(lambda leaf: _output_spec(leaf, name), traced.structured_outputs)


def _output_spec(leaf: Any, name: str) -> tf.TensorSpec | None:
    if leaf is None:
        return None
    if not isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
        raise ValueError(
            f"{name} returns a {type(leaf).__name__.removesuffix('Spec')}, which is no array; let it return "
            "dense tensors"
        )
    return tf.TensorSpec(leaf.shape.as_list() if leaf.shape.rank is not None else (None,), leaf.dtype)
