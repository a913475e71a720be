"""Several DNNs at once: CPU-GPU collaborative scheduling, layer by layer (paper P4 and beyond).

    graph, costs                      networks as graphs of layers, devices, requests; how long a layer takes
    policy, planning, policies        which device a layer goes to
    distributor, engine, accounts     the layers of a request on their way through the threads
    simulation                        the same on a virtual clock
    calls, products, folding, cutting Keras models taken apart, made faster, and cut into pieces
    models, segments                  and put together again
    deadlines, service, scheduler     models in service
    preparing                         from a Keras model to one in service

`MultiModelScheduler` imports TensorFlow on first use.
"""

from __future__ import annotations

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
