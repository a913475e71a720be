"""Several DNNs at once: CPU-GPU collaborative scheduling, layer by layer (paper P4 and beyond).

A Keras model is taken apart (`models`), made faster and cut (`calls`), merged (`segments`) and measured
(`preparing`). `service` takes requests for it; `distributor` and `engine` send their layers through the
threads, to the devices that a `policy` selects by `costs`.
`simulation` does that on a virtual clock. `MultiModelScheduler` imports TensorFlow on first use.
"""

from __future__ import annotations

from overlap_train._support.imports import public_names
from overlap_train.scheduling.accounts import ModelStatistics, SchedulerStatistics
from overlap_train.scheduling.costs import CostModel
from overlap_train.scheduling.graph import Device, Platform, Transfer
from overlap_train.scheduling.policy import Policy
from overlap_train.scheduling.scheduler import MultiModelScheduler

__all__ = [
    "CostModel",
    "Device",
    "ModelStatistics",
    "MultiModelScheduler",
    "Platform",
    "Policy",
    "SchedulerStatistics",
    "Transfer",
]

__dir__ = public_names(__name__)
