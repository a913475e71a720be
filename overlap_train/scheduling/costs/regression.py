"""Run time of a layer from its kind, FLOPs, bytes and batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overlap_train.scheduling.graph.layers import Work

__all__ = ["WorkRegression"]

_Array = NDArray[np.float64]


class WorkRegression:
    """A roofline-like mean with a smooth correction on top, both fitted to relative errors.

    The mean is `a·operations + b·flops + c·moved_bytes + d·weight_bytes` with coefficients that are not
    negative, one set for each kind with enough samples and one for all. What it leaves over, as a
    logarithm, is smooth in the logarithms of the same quantities (a convolution's efficiency depends
    on its shape), and kernel ridge regression with a Gaussian kernel takes it up; far from all samples
    the correction fades and the mean remains.
    """

    _MIN_SAMPLES = 8
    _MAX_SAMPLES = 600
    _RIDGE = 0.02

    def __init__(
        self,
        coefficients: dict[str, _Array],
        centres: _Array,
        weights: _Array,
        scale: _Array,
        kinds: list[str],
    ) -> None:
        self._coefficients = coefficients
        self._centres = centres
        self._weights = weights
        self._scale = scale
        self._kinds = kinds
        self._cache: dict[Work, float] = {}

    @classmethod
    def fit(cls, samples: Sequence[tuple[Work, float]]) -> WorkRegression:
        """Fit to (work, seconds) pairs of one device."""
        if not samples:
            raise ValueError("a regression needs at least one profiled layer, got none")
        if len(samples) > cls._MAX_SAMPLES:
            stride = np.linspace(0, len(samples) - 1, cls._MAX_SAMPLES).astype(int)
            samples = [samples[i] for i in stride]
        works = [work for work, _ in samples]
        seconds = np.array([seconds for _, seconds in samples])
        linear = np.array([_linear(work) for work in works])
        coefficients = {"": _relative_nnls(linear, seconds)}
        for kind in {work.kind for work in works}:
            chosen = np.array([work.kind == kind for work in works])
            if chosen.sum() >= cls._MIN_SAMPLES:
                coefficients[kind] = _relative_nnls(linear[chosen], seconds[chosen])
        kinds = sorted({work.kind for work in works})
        centres = np.array([_shape(work, kinds) for work in works])
        scale = np.concatenate([np.full(4, 1.0), np.full(len(kinds), 3.0)])
        mean = np.array([_mean(coefficients, work) for work in works])
        kernel = _gaussian(centres, centres, scale) + cls._RIDGE * np.eye(len(works))
        weights = np.linalg.solve(kernel, np.log(seconds / mean))
        return cls(coefficients, centres, weights, scale, kinds)

    def seconds(self, work: Work) -> float:
        """The expected run time of `work`; of a merged segment, the sum over its parts."""
        known = self._cache.get(work)
        if known is None:
            known = sum(self._single(part) for part in work.single_parts())
            self._cache[work] = known
        return known

    def _single(self, work: Work) -> float:
        near = _gaussian(np.array([_shape(work, self._kinds)]), self._centres, self._scale)
        return float(_mean(self._coefficients, work) * np.exp(np.clip(near @ self._weights, -2, 2))[0])


def _linear(work: Work) -> list[float]:
    return [float(work.operations), work.flops, work.moved_bytes, work.weight_bytes]


def _shape(work: Work, kinds: list[str]) -> list[float]:
    sizes = [np.log2(1 + size) / 2 for size in (work.flops, work.moved_bytes, work.weight_bytes)]
    intensity = np.log2((1 + work.flops) / (1 + work.moved_bytes + work.weight_bytes))
    return [*sizes, float(intensity), *(float(work.kind == kind) for kind in kinds)]


def _mean(coefficients: dict[str, _Array], work: Work) -> float:
    chosen = coefficients.get(work.kind, coefficients[""])
    return max(float(np.dot(chosen, _linear(work))), 1e-7)


def _gaussian(left: _Array, right: _Array, scale: _Array) -> _Array:
    difference = (left[:, None, :] - right[None, :, :]) * scale
    result: _Array = np.exp(-0.5 * np.sum(difference**2, axis=2))
    return result


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
