"""DVCLive: its callback."""

from __future__ import annotations

from dvclive.keras import DVCLiveCallback

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def stock() -> Run:
    model = build()
    model.fit(X, Y, callbacks=[DVCLiveCallback(save_dvc_exp=False)], **ARGUMENTS)
    return Run.of(model)


def ours() -> Run:
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, callbacks=[DVCLiveCallback(save_dvc_exp=False)], **ARGUMENTS)
    return Run.of(model, trainer)
