"""Several devices and hosts: a model on all of them, an evaluator elsewhere, GPUs with separate streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train._fit.evaluator import evaluate_run
    from overlap_train.parallel.cluster import join_cluster
    from overlap_train.parallel.ray_report import RayReport
    from overlap_train.parallel.streams import split_gpu

__all__ = ["RayReport", "evaluate_run", "join_cluster", "split_gpu"]

_HOMES = {
    "RayReport": "ray_report",
    "evaluate_run": "overlap_train._fit.evaluator",
    "join_cluster": "cluster",
    "split_gpu": "streams",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
