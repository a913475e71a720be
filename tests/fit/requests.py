"""Requests as `Trainer.fit` makes them."""

from __future__ import annotations

from overlap_train import Trainer
from overlap_train._fit.request import FitRequest, make_request
from tests.networks import arrays


def request_of(trainer: Trainer, **arguments) -> FitRequest:
    """Returns what a call of `fit` asks for; with data of its own if it is given none."""
    x, y = arrays()
    return make_request(trainer._settings(), **{"x": x, "y": y, **arguments})
