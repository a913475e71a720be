"""How long a layer takes on a device: its profile or first runs, and a correction that follows the load.

The paper names per-layer execution-time models as future work; this is ours. `CostModel` is guarded by
its own lock and may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from overlap_train._support.arguments import (
    LARGEST,
    require_callable,
    require_instance,
    require_items,
    require_real,
    short_repr,
)
from overlap_train.scheduling.graph import Device, Layer

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

    The estimate for a layer is its profiled time, or that of the fastest of its first three runs, times a
    factor for the device. A layer that has neither counts as a millisecond. The factor follows how much
    longer than expected recent jobs took. Background load slows all layers of a device alike, so the factor
    also applies to layers not seen since. A slower correction for each layer learns what the other two miss.
    """

    _DEFAULT_S = 1e-3
    _FIRST_RUNS = 3
    _MEMORY_S = 0.1
    """Seconds of the most recent work from which a device's factor is learned."""
    _FEWEST = 100
    """Observations that a device's factor remembers at most; layers may be short against `_MEMORY_S`."""
    _LAYER_RATE = 0.05
    """The weight of a new observation in a layer's own correction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profile: dict[tuple[str, str], float] = {}
        self._runs: Counter[tuple[str, str]] = Counter()  # of each layer and device, up to the first few
        self._layer_factor: dict[tuple[str, str], float] = {}
        self._recent_s: dict[str, tuple[float, float]] = {}
        self._published: dict[str, float] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Changes whenever an answer may have changed by more than a few percent."""
        return self._version

    def add_profile(self, measured: Iterable[tuple[Layer, Device, float]]) -> None:
        """Add measured run times in seconds, each for the batch of its layer.

        Raises:
            TypeError: `measured` is not a collection of triples of a layer, a device and a time.
            ValueError: a time is not positive and finite.
        """
        samples = require_items("measured", measured, (tuple, list), expected=_SAMPLES)
        measured = [_checked_sample("measured", sample) for sample in samples]
        with self._lock:
            for layer, device, seconds in measured:
                self._profile[layer.name, device.name] = seconds
                self._runs[layer.name, device.name] = self._FIRST_RUNS
            self._version += 1

    def seconds(self, layer: Layer, device: Device, examples: float = 1.0) -> float:
        """Return the seconds that a layer takes on a device, for `examples` times its own batch."""
        key = (layer.name, device.name)
        with self._lock:
            factor = self._published.get(device.name, 1.0) * self._layer_factor.get(key, 1.0)
            return self._profile.get(key, self._DEFAULT_S) * examples * factor

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
            if seconds <= 0 or examples <= 0:
                return
            if self._runs[key] < self._FIRST_RUNS:  # not one alone, which TensorFlow may use to optimise it
                self._runs[key] += 1
                unloaded_s = seconds / examples / self._published.get(device.name, 1.0)
                self._profile[key] = min(unloaded_s, self._profile.get(key, unloaded_s))
                self._version += 1
                return
            unloaded_s = self._profile[key] * examples
            correction = self._layer_factor.get(key, 1.0)
            load = self._follow(device.name, seconds, unloaded_s * correction)
            surprise = math.log(min(max(seconds / (unloaded_s * correction * load), 0.1), 10.0))
            self._layer_factor[key] = correction * math.exp(self._LAYER_RATE * surprise)
            if abs(math.log(load / self._published.get(device.name, 1.0))) > 0.05:
                self._published[device.name] = load
                self._version += 1

    def _follow(self, device: str, seconds: float, expected_s: float) -> float:
        """The ratio of what recent jobs took to what was expected; a mean would misjudge duty cycles."""
        # A little work without load to begin with keeps the first observation from being all.
        spent_s, planned_s = self._recent_s.get(device, (self._MEMORY_S / 4, self._MEMORY_S / 4))
        decay = math.exp(-max(expected_s / self._MEMORY_S, 1 / self._FEWEST))
        spent_s, planned_s = spent_s * decay + seconds, planned_s * decay + expected_s
        self._recent_s[device] = (spent_s, planned_s)
        return spent_s / planned_s


def _checked_sample(name: str, sample: Any) -> tuple[Layer, Device, float]:
    if not (isinstance(sample, tuple) and len(sample) == 3):
        raise TypeError(f"{name} must be {_SAMPLES}; got {short_repr(sample)} in it")
    layer, device, seconds = sample
    require_instance(f"a layer in {name}", layer, Layer, optional=False)
    require_instance(f"a device in {name}", device, Device, optional=False)
    what = f"seconds of {layer.name!r} on {device.name!r} in {name}"
    return layer, device, require_real(what, seconds, above=0)
