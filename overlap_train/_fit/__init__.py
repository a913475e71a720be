"""One `fit`: built, run epoch by epoch, delivered. The only room that knows all stages.

What `Trainer` calls is loaded by its first `fit`, not by the import of `Trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.lazy import lazy_names

if TYPE_CHECKING:
    from overlap_train._fit.callback_list import require_callbacks
    from overlap_train._fit.explain import explain_fit
    from overlap_train._fit.request import FitArguments, make_request, require_data
    from overlap_train._fit.run import run_evaluate, run_fit
    from overlap_train._fit.settings import TrainerSettings

__all__ = [
    "FitArguments",
    "TrainerSettings",
    "explain_fit",
    "make_request",
    "require_callbacks",
    "require_data",
    "run_evaluate",
    "run_fit",
]

_HOMES = {
    "FitArguments": "request",
    "TrainerSettings": "settings",
    "explain_fit": "explain",
    "make_request": "request",
    "require_callbacks": "callback_list",
    "require_data": "request",
    "run_evaluate": "run",
    "run_fit": "run",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
