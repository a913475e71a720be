"""One training step whose batch is divided into parts that run side by side on the cores of a CPU.

The parts' forward and backward passes are independent branches of one graph, so TensorFlow's inter-op
threads run them at the same time. Between them stands the loss, computed once for the whole batch by the
model's own `compute_loss`:

    y_k = f(x_k; w) for each part k,    L = compute_loss(y, (y_1, y_2, ...)),
    dL/dw = sum_k (dy_k/dw)^T dL/dy_k + what the loss has from the weights directly (regularisers).

This is the gradient of the whole batch, with rounding in another order, for any loss, reduction, sample
weights and sizes of the parts; loss, metrics, loss scaling and clipping are computed as Keras does, once.
It needs each row of the outputs to depend on its own row of the inputs only. `find_obstacle` says where
that does not hold or cannot be known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from overlap_train import _keras
from overlap_train.training.dropout import Masks, dropout_layers, whole_batch_dropout
from overlap_train.training.step import Batch, Logs, StepFunction

__all__ = ["SplitStep", "find_obstacle", "unknown_layer"]

_Gradient: TypeAlias = Any
"""A dense tensor, `tf.IndexedSlices`, or None for a variable that the loss does not depend on."""

_ROW_BY_ROW = frozenset(
    (
        "InputLayer",
        "Sequential",
        "Functional",
        "Identity",
        "Dense",
        "EinsumDense",
        "Embedding",
        "Flatten",
        "Reshape",
        "Permute",
        "RepeatVector",
        "Activation",
        "ReLU",
        "LeakyReLU",
        "PReLU",
        "ELU",
        "Softmax",
        "Rescaling",
        "Dropout",
        "Add",
        "Subtract",
        "Multiply",
        "Average",
        "Maximum",
        "Minimum",
        "Concatenate",
        "Conv1D",
        "Conv2D",
        "Conv3D",
        "Conv1DTranspose",
        "Conv2DTranspose",
        "Conv3DTranspose",
        "DepthwiseConv1D",
        "DepthwiseConv2D",
        "SeparableConv1D",
        "SeparableConv2D",
        "MaxPooling1D",
        "MaxPooling2D",
        "MaxPooling3D",
        "AveragePooling1D",
        "AveragePooling2D",
        "AveragePooling3D",
        "GlobalMaxPooling1D",
        "GlobalMaxPooling2D",
        "GlobalMaxPooling3D",
        "GlobalAveragePooling1D",
        "GlobalAveragePooling2D",
        "GlobalAveragePooling3D",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ZeroPadding3D",
        "Cropping1D",
        "Cropping2D",
        "Cropping3D",
        "UpSampling1D",
        "UpSampling2D",
        "UpSampling3D",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "UnitNormalization",
        "LSTM",
        "LSTMCell",
        "GRU",
        "GRUCell",
        "SimpleRNN",
        "SimpleRNNCell",
        "Bidirectional",
        "MultiHeadAttention",
        "Attention",
        "AdditiveAttention",
    )
)


class SplitStep:
    """`keras.Model.train_step` with the batch in parts; `find_obstacle` must have found nothing.

    Called while tracing, on the training thread.

    Args:
        model: built and compiled.
        parts: into how many parts a batch is divided; their sizes differ by one row at most.
        whole: the step for batches of fewer rows than there are parts.
        around: what puts a step where the model's variables may be updated.
    """

    def __init__(
        self,
        model: keras.Model,
        parts: int,
        whole: StepFunction,
        around: Callable[[StepFunction], StepFunction] = lambda step: step,
    ) -> None:
        self._model = model
        self._parts = parts
        self._whole = around(whole)
        self._split = around(self._in_parts)

    def __call__(self, batch: Batch) -> Logs:
        """Makes one step."""
        leaf = _leaves(batch)[0]
        if leaf.shape[0] is not None:
            return self._split(batch) if leaf.shape[0] >= self._parts else self._whole(batch)
        enough = tf.shape(leaf)[0] >= self._parts
        logs: Logs = tf.cond(enough, lambda: self._split(batch), lambda: self._whole(batch))
        return logs

    def _in_parts(self, batch: Batch) -> Logs:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        bounds = self._bounds(_leaves(x)[0])
        tapes, outputs = self._forward(x, bounds)
        y_pred = keras.tree.map_structure(lambda *parts: _concatenate(parts, _leaves(x)[0]), *outputs)

        weights = model.trainable_weights
        with tf.GradientTape() as tape:
            predictions = _leaves(y_pred)
            tape.watch([leaf for leaf in predictions if leaf.dtype.is_floating])
            loss = _keras.compute_and_track_loss(model, x, y, y_pred, sample_weight)
            scaled = model.optimizer.scale_loss(loss)
        by_output, direct = tape.gradient(scaled, (predictions, list(weights)))

        gradients = [direct]
        for part_tape, output, begin, end in zip(tapes, outputs, bounds, bounds[1:], strict=False):
            pairs = zip(_leaves(output), by_output, strict=True)
            targets = [(leaf, gradient[begin:end]) for leaf, gradient in pairs if gradient is not None]
            leaves, seeds = [leaf for leaf, _ in targets], [seed for _, seed in targets]
            gradients.append(part_tape.gradient(leaves, list(weights), output_gradients=seeds))
        summed = [_add(parts) for parts in zip(*gradients, strict=True)]
        model.optimizer.apply_gradients(zip(summed, weights, strict=True))
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _forward(self, x: Any, bounds: Sequence[Any]) -> tuple[list[tf.GradientTape], list[Any]]:
        tapes, outputs = [], []
        masks: Masks = {}
        with whole_batch_dropout(self._model) as begin_part:
            for begin, end in itertools.pairwise(bounds):
                begin_part(bounds[-1], begin, end, masks)
                part = keras.tree.map_structure(lambda t, b=begin, e=end: None if t is None else t[b:e], x)
                with tf.GradientTape() as tape:
                    outputs.append(_keras.forward(self._model, part))
                tapes.append(tape)
        return tapes, outputs

    def _bounds(self, leaf: tf.Tensor) -> list[Any]:
        rows = leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf)[0]
        return [rows * index // self._parts for index in range(self._parts + 1)]


def find_obstacle(model: keras.Model, element_spec: Any, *, trusted: bool = False) -> str | None:
    """Says why a step of a built model cannot be split, or returns None if it can.

    The model is traced once, without being run and without changing it.

    Args:
        model: built and compiled.
        element_spec: nested `tf.TensorSpec` of a batch.
        trusted: whether the user vouches for layers of which nothing is known: that each row of their
            outputs depends on its own row of the inputs only.
    """
    if not _keras.is_stock_method(model.train_step):
        return f"{type(model).__name__}.train_step is not Keras's own"
    if model.optimizer is None or not model.trainable_weights:
        return "there is nothing to train"
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return "replicas share each batch already"
    unknown = None if trusted else unknown_layer(model)
    if unknown is not None:
        return f"nothing is known of whether {unknown} treats each row of a batch by itself"
    return _Probe(model).obstacle(element_spec)


def unknown_layer(model: keras.Model, *, also: Sequence[str] = ()) -> str | None:
    """Returns the first layer or operation that might mix the rows of a batch, unless `also` names it."""
    for layer in _keras.flat_layers(model):
        kind = type(layer)
        # A Model subclass has a `call` of its own, even where its base class is known.
        if kind.__module__.split(".")[0] != "keras" or kind.__name__ not in (*_ROW_BY_ROW, *also):
            return f"{kind.__name__} {layer.name!r}"
        axis = getattr(layer, "axis", None)
        if axis is not None and 0 in (axis if isinstance(axis, (list, tuple)) else [axis]):
            return f"{kind.__name__} {layer.name!r} with axis 0"
        for operation in getattr(layer, "operations", ()):
            if not isinstance(operation, keras.Layer):
                return f"the operation {operation.name!r}"
    return None


class _Probe:
    """Traces a model's forward pass to see what it does beside computing outputs from inputs."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._found: str | None = None

    def obstacle(self, element_spec: Any) -> str | None:
        specs = keras.tree.map_structure(_with_any_batch, element_spec)
        try:
            tf.function(self._look, autograph=False).get_concrete_function(specs)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return f"it cannot be traced with batches of any size: {first_line[:200]}"
        return self._found

    def _look(self, batch: Batch) -> tf.Tensor:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(_keras.without_optionals(batch))
        model = self._model
        variables = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
        before = {id(v): v.value.read_value() for v in variables}
        mapping = [(v, before[id(v)]) for v in variables]
        allowed = {id(layer.seed_generator.state) for layer in dropout_layers(model)}
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = _leaves(_keras.forward(model, x))
        changed = [v.path for v in variables if scope.get_current_value(v) is not before[id(v)]]
        written = _keras.scope_variable_ids(scope) - before.keys()
        seeds = {v.path for v in variables if id(v) in allowed}
        state = [path for path in changed if path not in seeds]
        if any(leaf is not None and leaf.shape.rank == 0 for leaf in _leaves(x)):
            self._found = "an input has no batch axis"
        elif state or written:
            self._found = (
                f"training changes state of the model: {state[0] if state else 'a random generator'}"
            )
        elif scope.losses:
            self._found = "add_loss or an activity regulariser adds a loss that depends on the batch"
        elif any(leaf.shape.rank in (None, 0) or leaf.shape[0] is not None for leaf in outputs):
            self._found = "an output has no row for each row of the inputs"
        elif any(_keras.has_mask(leaf) for leaf in outputs):
            self._found = "an output carries a mask, whose weights are those of the whole batch"
        return tf.constant(0)


def _leaves(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def _with_any_batch(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def _concatenate(parts: Sequence[tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    whole = tf.concat(parts, axis=0)
    whole.set_shape([like.shape[0], *whole.shape[1:]])
    return whole


def _add(gradients: Sequence[_Gradient]) -> _Gradient:
    """Adds gradients of one variable; sparse ones stay sparse, as the optimizer would get them."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in present):
        values = tf.concat([gradient.values for gradient in present], axis=0)
        indices = tf.concat([gradient.indices for gradient in present], axis=0)
        return tf.IndexedSlices(values, indices, present[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in present])
