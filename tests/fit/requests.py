"""Requests as `Trainer.fit` makes them."""

from __future__ import annotations

import inspect

from overlap_train import Trainer
from overlap_train._fit.request import FitRequest, make_request
from tests.networks import arrays

# Those that `fit` has by default, with data.
ARGUMENTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Trainer.fit).parameters.items()
    if name not in ("self", "resume")
}
ARGUMENTS["x"], ARGUMENTS["y"] = arrays()


def request_of(trainer: Trainer, resume=None, **given) -> FitRequest:
    """Returns what a call of `fit` asks for."""
    return make_request(trainer._settings(), **{**ARGUMENTS, **given}, resume=resume)
