"""tqdm: its bars in the list of callbacks."""

from __future__ import annotations

from typing import Any

from tqdm.keras import TqdmCallback

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def train(trainer: Any) -> None:
    trainer.fit(X, Y, callbacks=[TqdmCallback()], **ARGUMENTS)


stock, ours = both_ways(train)
