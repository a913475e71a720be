"""Several DNNs at once: CPU-GPU collaborative scheduling, layer by layer (paper P4 and beyond).

    graph, costs                    networks as graphs of layers, devices, requests; how long a layer takes
    policy, planning, policies      which device a layer goes to
    distributor, engine, accounts   the layers of a request on their way through the threads
    simulation                      the same on a virtual clock
    calls, models, segments         Keras models taken apart and put together again
    service, preparing, scheduler   models in service

`calls`, `models` and `preparing` alone import TensorFlow; `MultiModelScheduler` does on first use.
"""

from __future__ import annotations

from overlap_train._support.imports import public_names
from overlap_train.scheduling.accounts import SchedulerStatistics
from overlap_train.scheduling.costs import CostModel
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import Device, Platform, Transfer
from overlap_train.scheduling.policies import POLICIES
from overlap_train.scheduling.policy import Policy
from overlap_train.scheduling.scheduler import MultiModelScheduler
from overlap_train.scheduling.simulation import Arrival, BackgroundLoad, simulate

__all__ = [
    "POLICIES",
    "Arrival",
    "BackgroundLoad",
    "CostModel",
    "Device",
    "Engine",
    "MultiModelScheduler",
    "Platform",
    "Policy",
    "SchedulerStatistics",
    "Transfer",
    "simulate",
]

__dir__ = public_names(__name__)
