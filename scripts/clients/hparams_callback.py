"""TensorBoard's HParams: its callback writes the settings of a training next to what TensorBoard is told."""

from __future__ import annotations

from typing import Any

import keras
from tensorboard.plugins.hparams import api

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def train(trainer: Any) -> None:
    settings = api.KerasCallback("logs", {"rate": 0.01})
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs"), settings], **ARGUMENTS)


stock, ours = both_ways(train)
