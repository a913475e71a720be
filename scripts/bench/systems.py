"""What is compared, by name; `contenders` holds what does the work, imported when a run begins."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scripts.bench import machine
from scripts.bench.workloads import Workload

if TYPE_CHECKING:
    from scripts.bench.contenders import Contender

__all__ = ["BASELINES", "DEFAULT_SYSTEMS", "SYSTEMS", "System"]


@dataclass(frozen=True)
class System:
    """An entry of the comparison.

    Attributes:
        name: as on the command line.
        title: one line for the report.
        contender: the class that does the work, as `module.Class` of this package.
        uses_threads: whether `--threads` means anything to it; if not, it runs once for all values.
        baseline: whether others are measured against it.
        needs: modules that must be installed.
        needs_gpu: whether it has a use for a GPU only.
        preloads: modules that its process imports before TensorFlow.
        workloads: the only workloads that it knows; all if empty.
        environment: variables that its process starts with.
        configures: whether its process sizes TensorFlow's threads with `overlap_train.configure()`.
    """

    name: str
    title: str
    contender: str
    uses_threads: bool = True
    baseline: bool = False
    needs: tuple[str, ...] = ()
    needs_gpu: bool = False
    preloads: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    configures: bool = False

    def load(self) -> type[Contender]:
        """Imports what does the work; its instances are systems ready to train."""
        module, name = self.contender.split(".")
        contender: type[Contender] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return contender

    def missing(self) -> list[str]:
        """Returns which modules that it needs are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def obstacle(self, workload: Workload) -> str | None:
        """Returns why it cannot train a workload here, or None."""
        missing = self.missing()
        if missing:
            return f"{' and '.join(missing)} not installed"
        if self.needs_gpu and not machine.gpu_names():
            return "it needs a GPU, and this machine has none"
        if self.workloads and workload.name not in self.workloads:
            return f"it has no network for {workload.name}"
        return None


_ALL = (
    System(
        "keras-numpy",
        "keras.Model.fit from NumPy arrays",
        "contenders.KerasNumpy",
        uses_threads=False,
        baseline=True,
    ),
    System("keras-tfdata", "keras.Model.fit from tf.data", "contenders.KerasTfData", baseline=True),
    System(
        "keras-tfdata-tuned",
        "keras.Model.fit from tf.data, tuned by hand",
        "contenders.KerasTfDataTuned",
        baseline=True,
    ),
    System(
        "keras-xla",
        "keras.Model.fit from tf.data, tuned by hand, compiled by XLA for the widest vectors",
        "contenders.KerasXla",
        baseline=True,
        environment={
            "XLA_FLAGS": "--xla_cpu_prefer_vector_width=512 --xla_cpu_enable_fast_math=true "
            "--xla_cpu_multi_thread_eigen=true"
        },
    ),
    System("paper", "the scheme of paper P1, taken literally", "contenders.Paper", baseline=True),
    System("overlap", "overlap_train.Trainer", "contenders.Overlap", configures=True),
    System(
        "overlap-accelerated",
        "overlap_train.Trainer on accelerate(model)",
        "contenders.OverlapAccelerated",
        configures=True,
        workloads=("mnist", "mnist-1gb", "resnet", "unet"),
    ),
    System(
        "overlap-keras-kernels",
        "overlap_train.Trainer, Keras's own operations",
        "contenders.OverlapKerasKernels",
        configures=True,
    ),
    System(
        "overlap-unhelped",
        "overlap_train.Trainer, no idle core helps a convolution",
        "contenders.Overlap",
        configures=True,
        environment={"OVERLAP_TRAIN_CONV_HELPERS": "0"},
    ),
    System(
        "overlap-always",
        "overlap_train.Trainer, overlapped however busy the cores are",
        "contenders.OverlapAlways",
        configures=True,
    ),
    System(
        "overlap-split-gpu",
        "overlap_train.Trainer, validation on a part of the GPU with a stream of its own",
        "contenders.OverlapSplitGpu",
        needs_gpu=True,
    ),
    System("overlap-sync", "overlap_train.Trainer, max_lag=0", "contenders.OverlapSync", configures=True),
    System(
        "train-only",
        "overlap_train.Trainer, no validation",
        "contenders.TrainOnly",
        uses_threads=False,
        configures=True,
    ),
)

_OPTIONAL = (
    System(
        "keras-jax",
        "keras.Model.fit on the JAX backend",
        "contenders.KerasNumpy",
        uses_threads=False,
        baseline=True,
        needs=("jax",),
        environment={"KERAS_BACKEND": "jax"},
    ),
    System(
        "keras-torch",
        "keras.Model.fit on the PyTorch backend",
        "contenders.KerasNumpy",
        uses_threads=False,
        baseline=True,
        needs=("torch",),
        environment={"KERAS_BACKEND": "torch"},
    ),
    System(
        "torch",
        "a plain PyTorch loop",
        "torch_loop.TorchLoop",
        uses_threads=False,
        baseline=True,
        needs=("torch",),
        preloads=("torch._dynamo",),  # its optimizers import it, and its LLVM must come before TensorFlow's
    ),
    System(
        "torch-compiled",
        "a PyTorch loop under torch.compile, channels last",
        "torch_loop.TorchCompiled",
        uses_threads=False,
        baseline=True,
        needs=("torch",),
        preloads=("torch._dynamo",),
    ),
    System(
        "keras-zentf",
        "keras.Model.fit from tf.data, tuned by hand, on AMD's operations",
        "contenders.KerasTfDataTuned",
        baseline=True,
        needs=("zentf",),
        environment={"TF_ENABLE_ZENDNN_OPTS": "1"},
    ),
)

SYSTEMS: dict[str, System] = {system.name: system for system in (*_ALL, *_OPTIONAL)}
# What takes `overlap` apart is run when it is asked for.
_ON_REQUEST = (
    "keras-xla",
    "overlap-accelerated",
    "overlap-keras-kernels",
    "overlap-unhelped",
    "overlap-always",
    "overlap-split-gpu",
)
DEFAULT_SYSTEMS = tuple(system.name for system in _ALL if system.name not in _ON_REQUEST)
BASELINES = tuple(system.name for system in SYSTEMS.values() if system.baseline)
