"""Dropout for a part of a batch, with the random numbers that the whole batch would get."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models

__all__ = ["BeginPart", "Masks", "dropout_layers", "whole_batch_dropout"]

Masks = dict[tuple[int, int], tf.Tensor]
"""The mask of a whole batch by layer and by how often the layer has been called before."""

BeginPart = Callable[[Any, Any, Any, Masks], None]


def whole_batch_dropout(model: keras.Model, patches: contextlib.ExitStack) -> BeginPart:
    """Let the model's Dropout layers draw for the whole batch what they would draw without splitting.

    The first part draws a layer's mask by the layer's own `call` on ones, with its own seed generator; each
    part multiplies with its rows. Parts that are traced on threads of their own do not disturb each other.
    What has no row for each of the batch's, such as a table of positions, gets one mask for all parts.

    Returns what says which part this thread traces next; it holds until `patches` are undone.
    """
    local = threading.local()

    def begin_part(rows: Any, begin: Any, end: Any, masks: Masks) -> None:
        local.rows, local.begin, local.end, local.masks = rows, begin, end, masks
        local.calls = {}

    def shared(layer: keras.layers.Dropout) -> Callable[..., tf.Tensor]:
        stock = layer.call

        def call(inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
            if not training:
                return stock(inputs, training=training)
            key = (id(layer), local.calls.get(id(layer), 0))
            local.calls[id(layer)] = key[1] + 1
            by_row = inputs.shape[0] is None or _is(inputs.shape[0], local.end - local.begin)
            if key not in local.masks:
                dynamic = tf.shape(inputs)
                rest = [dynamic[i] if n is None else n for i, n in enumerate(inputs.shape)][1:]
                rows = local.rows if by_row else inputs.shape[0]
                local.masks[key] = stock(tf.ones([rows, *rest], inputs.dtype), training=True)
            mask = local.masks[key]
            return inputs * (mask[local.begin : local.end] if by_row else mask)

        return call

    for layer in dropout_layers(model):
        vars(layer)["call"] = shared(layer)
        patches.callback(vars(layer).pop, "call")
    return begin_part


def _is(size: int, rows: Any) -> bool:
    return isinstance(rows, int) and size == rows


def dropout_layers(model: keras.Model) -> list[keras.layers.Dropout]:
    """Return the layers that are Dropout itself and drop something; a subclass may do anything."""
    unique = {id(layer): layer for layer in keras_models.flat_layers(model)}
    return [layer for layer in unique.values() if type(layer) is keras.layers.Dropout and layer.rate > 0]
