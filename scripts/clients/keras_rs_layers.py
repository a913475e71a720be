"""KerasRS: a model with its layers."""

from __future__ import annotations

from typing import Any

import keras
import keras_rs

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def _model() -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((8,))
    crossed = keras_rs.layers.FeatureCross()(inputs, inputs)
    crossed = keras_rs.layers.FeatureCross(projection_dim=4)(inputs, crossed)
    model = keras.Model(inputs, keras.layers.Dense(2)(crossed))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def train(trainer: Any) -> None:
    trainer.fit(X, Y, **ARGUMENTS)


stock, ours = both_ways(train, _model)
