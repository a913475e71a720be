"""tqdm: its bars in the list of callbacks."""

from __future__ import annotations

from tqdm.keras import TqdmCallback

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def stock() -> Run:
    model = build()
    model.fit(X, Y, callbacks=[TqdmCallback()], **ARGUMENTS)
    return Run.of(model)


def ours() -> Run:
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, callbacks=[TqdmCallback()], **ARGUMENTS)
    return Run.of(model, trainer)
