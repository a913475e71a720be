"""Names and modules that have moved: for one release they are found where they were, with a warning.

A package whose names moved says `__getattr__ = moved_names(__name__, {...})`; modules that moved stand in
`MOVED_MODULES`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

__all__ = ["MOVED_MODULES", "find_moved_modules", "moved_names"]

# Where a package moved, so did what is in it. `scripts` is in the repository and not in the wheel.
MOVED_MODULES: Mapping[str, str] = {
    "overlap_train.arguments": "overlap_train._support.arguments",
    "overlap_train.assembly": "overlap_train._fit.build",
    "overlap_train.benchmark": "scripts.bench",
    "overlap_train.benchmark.statistics": "scripts.bench.groups",
    "overlap_train.cached_files": "overlap_train._support.files",
    "overlap_train.callbacks": "overlap_train._callbacks",
    "overlap_train.checkpoint": "overlap_train._checkpoint",
    "overlap_train.checkpoint.policy": "overlap_train.options.checkpoint",
    "overlap_train.configuration": "overlap_train.options.threads",
    "overlap_train.conv.cuda_arrays": "scripts.gpu.cuda_arrays",
    "overlap_train.conv.cuda_check": "scripts.gpu.cuda_check",
    "overlap_train.conv.cuda_library": "scripts.gpu.cuda_library",
    "overlap_train.data": "overlap_train._data",
    "overlap_train.data.mnist": "overlap_train.models.mnist_data",
    "overlap_train.following": "overlap_train._fit.followers",
    "overlap_train.interrupts": "overlap_train._fit.interrupts",
    "overlap_train.joining": "overlap_train._validation.joining",
    "overlap_train.kernels": "overlap_train._training.kernels.choice",
    "overlap_train.lag": "overlap_train._fit.lag",
    "overlap_train.monitoring.gain": "overlap_train._fit.overlap_gain",
    "overlap_train.monitoring.idle": "overlap_train._fit.idle_cores",
    "overlap_train.opening": "overlap_train._fit.first_hooks",
    "overlap_train.parallel.step": "overlap_train._training.replicas.step",
    "overlap_train.parallel.strategy": "overlap_train._training.replicas.strategy",
    "overlap_train.recurrent": "overlap_train._training.kernels",
    "overlap_train.recurrent.layers": "overlap_train._training.kernels.recurrent",
    "overlap_train.recurrent.passes": "overlap_train._training.kernels.recurrent_passes",
    "overlap_train.resume": "overlap_train._checkpoint.resume",
    "overlap_train.scheduling.accounts": "overlap_train.scheduling.runtime.accounts",
    "overlap_train.scheduling.board": "overlap_train.scheduling.policies.board",
    "overlap_train.scheduling.calls": "overlap_train.scheduling.graph.calls",
    "overlap_train.scheduling.cutting": "overlap_train.scheduling.graph.cutting",
    "overlap_train.scheduling.device_models": "scripts.bench.device_figures",
    "overlap_train.scheduling.devices": "overlap_train.scheduling.graph.devices",
    "overlap_train.scheduling.engine": "overlap_train.scheduling.runtime.engine",
    "overlap_train.scheduling.jobs": "overlap_train.scheduling.graph.requests",
    "overlap_train.scheduling.load": "scripts.bench.load",
    "overlap_train.scheduling.placement": "overlap_train.scheduling.policies.placement",
    "overlap_train.scheduling.planned_policies": "overlap_train.scheduling.policies.planned",
    "overlap_train.scheduling.planning": "overlap_train.scheduling.policies.planning",
    "overlap_train.scheduling.regression": "overlap_train.scheduling.costs.regression",
    "overlap_train.scheduling.segments": "overlap_train.scheduling.runtime.segments",
    "overlap_train.scheduling.simulator": "overlap_train.scheduling.simulation",
    "overlap_train.scheduling.splitting": "overlap_train.scheduling.graph.model_splitting",
    "overlap_train.scheduling.tensorflow_backend": "overlap_train.scheduling.runtime.tensorflow_backend",
    "overlap_train.serving": "overlap_train._fit.evaluator_host",
    "overlap_train.session": "overlap_train._fit.session",
    "overlap_train.snapshot": "overlap_train._snapshot",
    "overlap_train.training": "overlap_train._training",
    "overlap_train.training.plan": "overlap_train.options.execution",
    "overlap_train.validation": "overlap_train._validation",
    "overlap_train.validation.evaluation_function": "overlap_train.options.functions",
    "overlap_train.validation.policy": "overlap_train.options.validation",
}


def moved_names(
    package: str, homes: Mapping[str, str], otherwise: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package some of whose names have moved.

    Args:
        package: its `__name__`.
        homes: by name, where it is now: "package.module.name", of which the last part may be a new name.
        otherwise: asked for all other names, if the package has a `__getattr__` without this one.
    """

    def find(name: str) -> Any:
        if name not in homes:
            if otherwise is not None:
                return otherwise(name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, new_name = homes[name].rpartition(".")
        _warn(f"{package}.{name}", homes[name])
        return getattr(importlib.import_module(home), new_name)

    return find


def find_moved_modules(moved: Mapping[str, str] = MOVED_MODULES) -> None:
    """Let modules be imported, and run with `python -m`, by the names that they had. Repeats do nothing."""
    finder = _Finder(moved)
    if finder not in sys.meta_path:
        # Ahead of the others, or a module that lies in a package that moved would be imported twice.
        sys.meta_path.insert(0, finder)


class _Finder:
    """Finds modules by the names that they had: one of `sys.meta_path`."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._moved = dict(moved)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Finder) and other._moved == self._moved

    def __hash__(self) -> int:
        return hash(tuple(self._moved))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new_name = self._new_name(name)
        if new_name is None:
            return None
        if name not in self._moved and importlib.util.find_spec(new_name) is None:
            return None
        origin = _find(name, new_name).origin
        return ModuleSpec(name, _Loader(new_name), origin=origin)

    def _new_name(self, name: str) -> str | None:
        if name in self._moved:
            return self._moved[name]
        package, _, rest = name.rpartition(".")
        above = self._new_name(package) if package else None
        return None if above is None else f"{above}.{rest}"


class _Loader(importlib.abc.Loader):
    """Loads a module under the name that it had: the very module that has the new one."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _warn(spec.name, self._new_name)
        module = importlib.import_module(self._new_name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system had put its own there

    def get_code(self, name: str) -> CodeType:
        """Return what `python -m` runs."""
        loader: Any = _find(name, self._new_name).loader
        with warnings.catch_warnings():
            if (
                not sys.warnoptions
            ):  # who types a command is not shown warnings of the modules that it imports
                warnings.simplefilter("default", DeprecationWarning)
            _warn(name, self._new_name)
        code: CodeType = loader.get_code(self._new_name)
        return code


def _find(name: str, new_name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(new_name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ModuleNotFoundError(
            f"{name} has moved to {new_name}, which is in the repository and not in the wheel: "
            f"run python -m {new_name} at the root of a checkout",
            name=name,
        )
    return spec


def _warn(name: str, new_name: str) -> None:
    """Warn at the line that used the old name: the caller of this function's caller."""
    warnings.warn(
        f"{name} has moved to {new_name}; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
