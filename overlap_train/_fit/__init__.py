"""One `fit`: built, run epoch by epoch, delivered. The only room that knows all stages.

What `Trainer` calls is loaded by its first `fit`, not by the import of `Trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train._fit.own_methods import OwnMethod
    from overlap_train._fit.request import make_evaluation_set, make_request
    from overlap_train._fit.run import explain_fit, run_evaluate, run_fit
    from overlap_train._fit.verifying import verify_fit

__all__ = [
    "OwnMethod",
    "explain_fit",
    "make_evaluation_set",
    "make_request",
    "run_evaluate",
    "run_fit",
    "verify_fit",
]

_HOMES = {
    "OwnMethod": "own_methods",
    "explain_fit": "run",
    "make_evaluation_set": "request",
    "make_request": "request",
    "run_evaluate": "run",
    "run_fit": "run",
    "verify_fit": "verifying",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
