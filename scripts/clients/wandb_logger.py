"""Weights & Biases: its logger in the list of callbacks."""

from __future__ import annotations

import wandb
from wandb.integration.keras import WandbMetricsLogger

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def stock() -> Run:
    wandb.init(project="clients")
    model = build()
    model.fit(X, Y, callbacks=[WandbMetricsLogger()], **ARGUMENTS)
    wandb.finish()
    return Run.of(model)


def ours() -> Run:
    wandb.init(project="clients")
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, callbacks=[WandbMetricsLogger()], **ARGUMENTS)
    wandb.finish()
    return Run.of(model, trainer)
