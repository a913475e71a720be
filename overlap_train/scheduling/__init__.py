"""Several DNNs at once: CPU-GPU collaborative scheduling, layer by layer (paper P4 and beyond).

    graph       networks as graphs of layers, devices, requests; Keras models taken apart
    costs       how long a layer takes on a device
    policies    which device a layer goes to
    runtime     a request's way from admission to result, on threads
    simulation  the same on a virtual clock

Each imports only what stands above it. Keras models and compiled segments apart, all of it is free of
TensorFlow, which `MultiModelScheduler` imports on first use.
"""

from __future__ import annotations

from overlap_train.scheduling.costs.model import CostModel
from overlap_train.scheduling.graph.devices import Device, Platform, Transfer
from overlap_train.scheduling.policies.base import Policy
from overlap_train.scheduling.policies.planned import POLICIES
from overlap_train.scheduling.runtime.accounts import SchedulerStatistics
from overlap_train.scheduling.runtime.engine import Engine
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
