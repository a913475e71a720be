"""DVCLive: its callback."""

from __future__ import annotations

from typing import Any

from dvclive.keras import DVCLiveCallback

from scripts.clients.case import ARGUMENTS, X, Y, both_ways


def train(trainer: Any) -> None:
    trainer.fit(X, Y, callbacks=[DVCLiveCallback(save_dvc_exp=False)], **ARGUMENTS)


stock, ours = both_ways(train)
