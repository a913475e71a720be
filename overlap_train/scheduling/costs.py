"""How long a layer takes on a device: profile, regression for what was not profiled, online correction.

The paper names per-layer execution-time models as future work; this is ours. `CostModel` is guarded by
its own lock and may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from overlap_train._support.arguments import (
    LARGEST,
    require_callable,
    require_each,
    require_instance,
    require_real,
    short_repr,
)
from overlap_train.scheduling.graph import Device, Layer, Work

_Array = NDArray[np.float64]


class WorkRegression:
    """A roofline-like mean with a smooth correction on top, both fitted to relative errors of one device.

    The mean is `a·operations + b·flops + c·moved_bytes + d·weight_bytes` with coefficients that are not
    negative, one set for each kind with enough samples and one for all. What it leaves over, as a logarithm,
    kernel ridge regression takes up, smooth in the logarithms of the same; far from all samples it fades.
    """

    _MIN_SAMPLES = 8
    _MAX_SAMPLES = 600
    _RIDGE = 0.02

    def __init__(self, samples: Sequence[tuple[Work, float]]) -> None:
        """Fit to (work, seconds) pairs, of which there is at least one."""
        if len(samples) > self._MAX_SAMPLES:
            stride = np.linspace(0, len(samples) - 1, self._MAX_SAMPLES).astype(int)
            samples = [samples[i] for i in stride]
        works = [work for work, _ in samples]
        seconds = np.array([seconds for _, seconds in samples])
        linear = np.array([_linear(work) for work in works])
        self._kinds = sorted({work.kind for work in works})
        self._coefficients = {"": _relative_nnls(linear, seconds)}
        for kind in self._kinds:
            rows = np.array([work.kind == kind for work in works])
            if rows.sum() >= self._MIN_SAMPLES:
                self._coefficients[kind] = _relative_nnls(linear[rows], seconds[rows])
        self._centres = np.array([self._shape(work) for work in works])
        self._scale = np.concatenate([np.full(4, 1.0), np.full(len(self._kinds), 3.0)])
        mean = np.array([self._mean(work) for work in works])
        kernel = self._gaussian(self._centres) + self._RIDGE * np.eye(len(works))
        self._weights = np.linalg.solve(kernel, np.log(seconds / mean))
        self._cache: dict[Work, float] = {}

    def seconds(self, work: Work) -> float:
        """The expected run time of `work`; of a merged segment, the sum over its parts."""
        seconds = self._cache.get(work)
        if seconds is None:
            seconds = self._cache[work] = sum(self._single(part) for part in work.single_parts())
        return seconds

    def _single(self, work: Work) -> float:
        similarity = self._gaussian(np.array([self._shape(work)]))
        return float(self._mean(work) * np.exp(np.clip(similarity @ self._weights, -2, 2))[0])

    def _shape(self, work: Work) -> list[float]:
        sizes = [np.log2(1 + size) / 2 for size in (work.flops, work.moved_bytes, work.weight_bytes)]
        intensity = np.log2((1 + work.flops) / (1 + work.moved_bytes + work.weight_bytes))
        return [*sizes, float(intensity), *(float(work.kind == kind) for kind in self._kinds)]

    def _mean(self, work: Work) -> float:
        coefficients = self._coefficients.get(work.kind, self._coefficients[""])
        return max(float(np.dot(coefficients, _linear(work))), 1e-7)

    def _gaussian(self, points: _Array) -> _Array:
        difference = (points[:, None, :] - self._centres[None, :, :]) * self._scale
        result: _Array = np.exp(-0.5 * np.sum(difference**2, axis=2))
        return result


def _linear(work: Work) -> list[float]:
    return [float(work.operations), work.flops, work.moved_bytes, work.weight_bytes]


def _relative_nnls(features: _Array, seconds: _Array) -> _Array:
    """Non-negative least squares on relative errors, by active-set elimination of negative terms."""
    scaled = features / seconds[:, None]
    size = np.maximum(np.abs(scaled).max(axis=0), 1e-300)
    active = np.ones(features.shape[1], dtype=bool)
    result = np.zeros(features.shape[1])
    while active.any():
        solution, *_ = np.linalg.lstsq(scaled[:, active] / size[active], np.ones(len(seconds)), rcond=None)
        if (solution >= 0).all():
            result[active] = solution / size[active]
            break
        worst = np.flatnonzero(active)[np.argmin(solution)]
        active[worst] = False
    return result


_SAMPLES = "triples of a Layer, a Device and seconds"
_LONGEST_S = 1e9  # thirty years: no measurement is longer, and the ratios would overflow


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
        raise TypeError(f"costs must be a CostModel, or another Costs, or None; got {short_repr(costs)}")


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
    correction for each layer learns what the other two miss.

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
            correction = self._layer_factor.get((layer.name, device.name), 1.0)
            return self._unloaded_s(layer, device) * examples * factor * correction

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
            correction = self._layer_factor.get(key, 1.0)
            load = self._follow(device.name, seconds, unloaded_s * correction)
            surprise = math.log(min(max(seconds / (unloaded_s * correction * load), 0.1), 10.0))
            self._layer_factor[key] = correction * math.exp(self._layer_rate * surprise)
            if abs(math.log(load / self._published.get(device.name, 1.0))) > 0.05:
                self._published[device.name] = load
                self._version += 1

    def _follow(self, device: str, seconds: float, expected_s: float) -> float:
        """The ratio of what recent jobs took to what was expected; a mean would misjudge duty cycles."""
        # A little work without load to begin with keeps the first observation from being all.
        spent_s, planned_s = self._recent_s.get(device, (self._memory_s / 4, self._memory_s / 4))
        decay = math.exp(-max(expected_s / self._memory_s, 1 / self._FEWEST))
        spent_s, planned_s = spent_s * decay + seconds, planned_s * decay + expected_s
        self._recent_s[device] = (spent_s, planned_s)
        return spent_s / planned_s

    def _unloaded_s(self, layer: Layer, device: Device) -> float:
        seconds = self._profile.get((layer.name, device.name))
        return self._predict(layer.work, device) if seconds is None else seconds

    def _predict(self, work: Work, device: Device) -> float:
        rows = self._profiled_work.get(device.name)
        if not rows:
            return self._default_s
        if device.name not in self._regressions:
            self._regressions[device.name] = WorkRegression(rows)
        return self._regressions[device.name].seconds(work)


def _checked_sample(name: str, sample: Any) -> tuple[Layer, Device, float]:
    if not (isinstance(sample, tuple) and len(sample) == 3):
        raise TypeError(f"{name} must be {_SAMPLES}; got {short_repr(sample)} in it")
    layer, device, seconds = sample
    require_instance(f"a layer in {name}", layer, Layer, optional=False)
    require_instance(f"a device in {name}", device, Device, optional=False)
    what = f"seconds of {layer.name!r} on {device.name!r} in {name}"
    return layer, device, require_real(what, seconds, above=0)
