"""One `fit`: built, run epoch by epoch, delivered. The only room that knows all stages.

What `Trainer` calls is loaded by its first `fit`, not by the import of `Trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train._fit.callback_list import require_callbacks
    from overlap_train._fit.explain import explain_fit
    from overlap_train._fit.own_methods import OwnMethod, asked_of_evaluate, asked_of_fit
    from overlap_train._fit.request import (
        make_request,
        require_data,
        require_heeded,
    )
    from overlap_train._fit.run import run_evaluate, run_fit

__all__ = [
    "OwnMethod",
    "asked_of_evaluate",
    "asked_of_fit",
    "explain_fit",
    "make_request",
    "require_callbacks",
    "require_data",
    "require_heeded",
    "run_evaluate",
    "run_fit",
]

_HOMES = {
    "OwnMethod": "own_methods",
    "asked_of_evaluate": "own_methods",
    "asked_of_fit": "own_methods",
    "explain_fit": "explain",
    "make_request": "request",
    "require_callbacks": "callback_list",
    "require_data": "request",
    "require_heeded": "request",
    "run_evaluate": "run",
    "run_fit": "run",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
