"""What is compared, by name; `contenders` holds what does the work, imported when a run begins."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """An entry of the comparison."""

    title: str
    contender: str  # the class that does the work
    uses_threads: bool = True  # otherwise it runs once for all values of --threads
    needs: str = ""  # a module that must be installed, and Keras's backend

    @property
    def missing(self) -> bool:
        """Whether a module is not installed that it needs."""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


SYSTEMS: dict[str, System] = {
    "keras-numpy": System("keras.Model.fit from NumPy arrays", "KerasNumpy", uses_threads=False),
    "keras-tfdata": System("keras.Model.fit from tf.data", "KerasTfData"),
    "keras-tfdata-tuned": System("keras.Model.fit from tf.data, tuned by hand", "KerasTfDataTuned"),
    "paper": System("the scheme of paper P1, taken literally", "Paper"),
    "overlap": System("overlap_train.Trainer", "Overlap"),
    "overlap-sync": System("overlap_train.Trainer, max_lag=0", "OverlapSync"),
    "keras-jax": System("keras.Model.fit on the JAX backend", "KerasNumpy", False, "jax"),
    "keras-torch": System("keras.Model.fit on the PyTorch backend", "KerasNumpy", False, "torch"),
}
OURS = ("overlap", "overlap-sync")
DEFAULT_SYSTEMS = tuple(name for name, system in SYSTEMS.items() if not system.missing)
BASELINES = tuple(name for name in SYSTEMS if name not in OURS)
