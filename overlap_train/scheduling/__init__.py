"""Several DNNs at once: CPU-GPU collaborative scheduling, layer by layer (paper P4 and beyond).

The core is free of TensorFlow; `MultiModelScheduler` and the splitting of Keras models import it on
first use.
"""

from __future__ import annotations

from overlap_train.scheduling.costs.model import CostModel, Costs, FixedCosts
from overlap_train.scheduling.graph.devices import Device, Platform, Transfer
from overlap_train.scheduling.graph.layers import REQUEST, Layer, LayerGraph, Port, Work
from overlap_train.scheduling.graph.requests import Job, JobQueue, Request
from overlap_train.scheduling.policies.base import CpuOnly, GpuOnly, Paper, Policy
from overlap_train.scheduling.policies.planned import POLICIES, EarliestFinish, Heft, Oracle, make_policy
from overlap_train.scheduling.runtime.accounts import DeviceAccount, ModelStatistics, Statistics
from overlap_train.scheduling.runtime.controller import LayerController, SyncChecker
from overlap_train.scheduling.runtime.distributor import (
    CoreSelector,
    Dispatcher,
    JobFormatter,
    LayerDistributor,
)
from overlap_train.scheduling.runtime.engine import Engine, LayerWorker
from overlap_train.scheduling.scheduler import MultiModelScheduler
from overlap_train.scheduling.simulation import Arrival, BackgroundLoad, Simulation, simulate

__all__ = [
    "POLICIES",
    "REQUEST",
    "Arrival",
    "BackgroundLoad",
    "CoreSelector",
    "CostModel",
    "Costs",
    "CpuOnly",
    "Device",
    "DeviceAccount",
    "Dispatcher",
    "EarliestFinish",
    "Engine",
    "FixedCosts",
    "GpuOnly",
    "Heft",
    "Job",
    "JobFormatter",
    "JobQueue",
    "Layer",
    "LayerController",
    "LayerDistributor",
    "LayerGraph",
    "LayerWorker",
    "ModelStatistics",
    "MultiModelScheduler",
    "Oracle",
    "Paper",
    "Platform",
    "Policy",
    "Port",
    "Request",
    "Simulation",
    "Statistics",
    "SyncChecker",
    "Transfer",
    "Work",
    "make_policy",
    "simulate",
]
