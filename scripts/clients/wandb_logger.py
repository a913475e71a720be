"""Weights & Biases: its logger in the list of callbacks."""

from __future__ import annotations

from typing import Any

import wandb
from wandb.integration.keras import WandbMetricsLogger

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def train(trainer: Any) -> None:
    wandb.init(project="clients")
    trainer.fit(X, Y, callbacks=[WandbMetricsLogger()], **ARGUMENTS)
    wandb.finish()


stock, ours = both_ways(train)
