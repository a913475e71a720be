"""What is compared, by name; `contenders` holds what does the work, imported when a run begins."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scripts.bench.workloads import Workload

if TYPE_CHECKING:
    from scripts.bench.contenders import Contender


@dataclass(frozen=True)
class System:
    """An entry of the comparison."""

    title: str
    contender: str  # the class that does the work
    uses_threads: bool = True  # otherwise it runs once for all values of --threads
    baseline: bool = False  # others are measured against it
    on_request: bool = False
    needs: str = ""  # a module that must be installed
    workloads: tuple[str, ...] = ()  # the only ones that it knows; all if empty
    environment: Mapping[str, str] = field(default_factory=dict)
    configures: bool = False  # its process sizes TensorFlow's threads with `overlap_train.configure()`

    def load(self) -> type[Contender]:
        """Imports what does the work; its instances are systems ready to train."""
        contender: type[Contender] = getattr(
            importlib.import_module("scripts.bench.contenders"), self.contender
        )
        return contender

    @property
    def missing(self) -> bool:
        """Whether a module is not installed that it needs."""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None

    def obstacle(self, workload: Workload) -> str | None:
        """Returns why it cannot train a workload here, or None."""
        if self.missing:
            return f"{self.needs} not installed"
        if self.workloads and workload.name not in self.workloads:
            return f"it has no network for {workload.name}"
        return None


SYSTEMS: dict[str, System] = {
    "keras-numpy": System(
        "keras.Model.fit from NumPy arrays", "KerasNumpy", uses_threads=False, baseline=True
    ),
    "keras-tfdata": System("keras.Model.fit from tf.data", "KerasTfData", baseline=True),
    "keras-tfdata-tuned": System(
        "keras.Model.fit from tf.data, tuned by hand", "KerasTfDataTuned", baseline=True
    ),
    "paper": System("the scheme of paper P1, taken literally", "Paper", baseline=True),
    "overlap": System("overlap_train.Trainer", "Overlap", configures=True),
    "overlap-accelerated": System(
        "overlap_train.Trainer on accelerate(model)",
        "OverlapAccelerated",
        on_request=True,
        configures=True,
        workloads=("mnist", "mnist-1gb", "resnet", "unet"),
    ),
    "overlap-always": System(
        "overlap_train.Trainer, overlapped however busy the cores are",
        "OverlapAlways",
        on_request=True,
        configures=True,
    ),
    "overlap-sync": System("overlap_train.Trainer, max_lag=0", "OverlapSync", configures=True),
    "train-only": System(
        "overlap_train.Trainer, no validation", "TrainOnly", uses_threads=False, configures=True
    ),
    "keras-jax": System(
        "keras.Model.fit on the JAX backend",
        "KerasNumpy",
        uses_threads=False,
        baseline=True,
        needs="jax",
        environment={"KERAS_BACKEND": "jax"},
    ),
    "keras-torch": System(
        "keras.Model.fit on the PyTorch backend",
        "KerasNumpy",
        uses_threads=False,
        baseline=True,
        needs="torch",
        environment={"KERAS_BACKEND": "torch"},
    ),
}
DEFAULT_SYSTEMS = tuple(name for name, system in SYSTEMS.items() if not (system.on_request or system.missing))
BASELINES = tuple(name for name, system in SYSTEMS.items() if system.baseline)
