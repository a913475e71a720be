"""How long a layer takes on a device: profile, regression for what was not profiled, online correction.

The paper names per-layer execution-time models as future work; this is ours. `CostModel` is guarded by
its own lock and may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from overlap_train._support.arguments import (
    LARGEST,
    require_callable,
    require_each,
    require_instance,
    require_real,
    shown,
)
from overlap_train.scheduling.costs.regression import WorkRegression
from overlap_train.scheduling.graph.devices import Device
from overlap_train.scheduling.graph.layers import Layer, Work

__all__ = ["CostModel", "Costs", "FixedCosts", "check_costs"]

_SAMPLES = "triples of a Layer, a Device and seconds"
_LONGEST_S = 1e9  # thirty years: what takes longer was not measured, and its ratios leave the floats


class Costs(Protocol):
    """What policies ask."""

    @property
    def version(self) -> int:
        """Changes whenever an answer may have changed by more than a few percent."""

    def seconds(self, layer: Layer, device: Device, examples: float = 1.0) -> float:
        """Expected run time of `layer` on one slot of `device`, for `examples` times its batch."""

    def observe(self, layer: Layer, device: Device, seconds: float, examples: float = 1.0) -> None:
        """Report how long it took."""


def check_costs(costs: object) -> None:
    """Raise TypeError unless `costs` is None or answers what `Costs` asks."""
    missing = [name for name in ("version", "seconds", "observe") if not hasattr(costs, name)]
    if costs is not None and missing:
        raise TypeError(f"costs must be a CostModel, or another Costs, or None; got {shown(costs)}")


class FixedCosts:
    """Costs given by a function, such as a simulated device's; observations are ignored."""

    version = 0

    def __init__(self, seconds: Callable[[Layer, Device], float]) -> None:
        require_callable("seconds", seconds)
        self._seconds = seconds

    def seconds(self, layer: Layer, device: Device, examples: float = 1.0) -> float:
        """Return the seconds that a layer takes on a device, for `examples` times its own batch."""
        return self._seconds(layer, device) * examples

    def observe(self, layer: Layer, device: Device, seconds: float, examples: float = 1.0) -> None:
        """Do nothing."""


class CostModel:
    """Learn the run time of every layer on every device.

    The estimate for a layer is its profiled time, or a regression's for a layer that was never seen, times a
    factor for the device. The factor follows how much longer than expected recent jobs took. Background load
    slows all layers of a device alike, so the factor also applies to layers not seen since. A slower
    correction for each layer learns what is particular to it.

    Args:
        memory_s: seconds of the most recent work from which a device's factor is learned. Make it shorter
            than the time in which the load changes, and longer than its duty cycle.
        layer_rate: weight of a new observation in a layer's own correction, 0 to 1.
        default_s: the estimate in seconds if nothing is known.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """

    _FEWEST = 100
    """Observations that a device's factor remembers at most; layers may be short against `memory_s`."""

    def __init__(self, *, memory_s: float = 0.1, layer_rate: float = 0.05, default_s: float = 1e-3) -> None:
        self._memory_s = require_real("memory_s", memory_s, above=0)
        self._layer_rate = require_real("layer_rate", layer_rate, above=0, maximum=1)
        self._default_s = require_real("default_s", default_s, minimum=0)
        self._lock = threading.Lock()
        self._profile: dict[tuple[str, str], float] = {}
        self._profiled_work: dict[str, list[tuple[Work, float]]] = {}
        self._regressions: dict[str, WorkRegression] = {}
        self._layer_factor: dict[tuple[str, str], float] = {}
        self._recent_s: dict[str, tuple[float, float]] = {}
        self._published: dict[str, float] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Changes whenever an answer may have changed by more than a few percent."""
        return self._version

    def add_profile(self, measured: Iterable[tuple[Layer, Device, float]]) -> None:
        """Add measured run times in seconds, each for the batch of its layer, and refit the regression.

        Raises:
            TypeError: `measured` is not a collection of triples of a layer, a device and a time.
            ValueError: a time is not positive and finite.
        """
        measured = require_each("measured", measured, _checked_sample, expected=_SAMPLES)
        with self._lock:
            for layer, device, seconds in measured:
                self._profile[layer.name, device.name] = seconds
                self._profiled_work.setdefault(device.name, []).append((layer.work, seconds))
            self._regressions.clear()
            self._version += 1

    def seconds(self, layer: Layer, device: Device, examples: float = 1.0) -> float:
        """Return the seconds that a layer takes on a device, for `examples` times its own batch."""
        with self._lock:
            factor = self._published.get(device.name, 1.0)
            own = self._layer_factor.get((layer.name, device.name), 1.0)
            return self._unloaded_s(layer, device) * examples * factor * own

    def observe(self, layer: Layer, device: Device, seconds: float, examples: float = 1.0) -> None:
        """Learn from the seconds that a layer took.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a number is out of range.
        """
        require_instance("layer", layer, Layer, optional=False)
        require_instance("device", device, Device, optional=False)
        seconds = require_real("seconds", seconds, maximum=_LONGEST_S)
        examples = require_real("examples", examples, minimum=0, maximum=LARGEST)
        key = (layer.name, device.name)
        with self._lock:
            unloaded_s = self._unloaded_s(layer, device) * examples
            if seconds <= 0 or unloaded_s <= 0:
                return
            own = self._layer_factor.get(key, 1.0)
            load = self._follow(device.name, seconds, unloaded_s * own)
            surprise = math.log(min(max(seconds / (unloaded_s * own * load), 0.1), 10.0))
            self._layer_factor[key] = own * math.exp(self._layer_rate * surprise)
            if abs(math.log(load / self._published.get(device.name, 1.0))) > 0.05:
                self._published[device.name] = load
                self._version += 1

    def _follow(self, device: str, seconds: float, expected_s: float) -> float:
        """The ratio of what recent jobs took to what was expected of them, each weighted by its length.

        A mean of ratios would be wrong under a duty cycle, where short jobs either run freely or not at all.
        """
        # A little work without load to begin with keeps the first observation from being all.
        took_s, hoped_s = self._recent_s.get(device, (self._memory_s / 4, self._memory_s / 4))
        kept = math.exp(-max(expected_s / self._memory_s, 1 / self._FEWEST))
        took_s, hoped_s = took_s * kept + seconds, hoped_s * kept + expected_s
        self._recent_s[device] = (took_s, hoped_s)
        return took_s / hoped_s

    def predict_unseen(self, work: Work, device: Device) -> float:
        """Return the regression's estimate in seconds, without profile and corrections."""
        with self._lock:
            return self._predict(work, device)

    def _unloaded_s(self, layer: Layer, device: Device) -> float:
        profiled = self._profile.get((layer.name, device.name))
        return self._predict(layer.work, device) if profiled is None else profiled

    def _predict(self, work: Work, device: Device) -> float:
        rows = self._profiled_work.get(device.name)
        if not rows:
            return self._default_s
        if device.name not in self._regressions:
            self._regressions[device.name] = WorkRegression.fit(rows)
        return self._regressions[device.name].seconds(work)


def _checked_sample(name: str, sample: Any) -> tuple[Layer, Device, float]:
    if not (isinstance(sample, tuple) and len(sample) == 3):
        raise TypeError(f"{name} must be {_SAMPLES}; got {shown(sample)} in it")
    layer, device, seconds = sample
    require_instance(f"a layer in {name}", layer, Layer, optional=False)
    require_instance(f"a device in {name}", device, Device, optional=False)
    what = f"seconds of {layer.name!r} on {device.name!r} in {name}"
    return layer, device, require_real(what, seconds, above=0)
