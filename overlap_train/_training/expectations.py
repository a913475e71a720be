"""What a candidate of a plan may gain and cost, as far as experience tells before anybody has timed it."""

from __future__ import annotations

from overlap_train._training.plan_cache import Candidate

__all__ = ["build_cost", "hoped_gain", "steps_of_a_timed_call"]

_CALL_S = 0.1


def hoped_gain(candidate: Candidate, best: Candidate, step_s: float) -> float:
    """Return the part of a step's time that a candidate might save; 0 if it is not worth a try.

    From experience on two cores (docs/results/2026-11-24-step-cost.md): XLA saves the cost of starting
    operations, which is all there is in steps below a millisecond and nothing in those of many; splitting
    is the reverse.
    Fast kernels save most in convolutions; from them there is no way back to be tried.
    """
    if candidate.fast and not best.fast:
        return 0.3 if step_s > 1e-3 else 0.0
    if best.fast and not candidate.fast:
        return 0.0
    if best.fast and best.splits > candidate.splits == 1:
        return 0.1  # the kernels use all cores by themselves
    if candidate.jit:
        return 0.75 if step_s < 2e-3 else 0.0
    if candidate.splits > 1:
        return (0.4 if best.splits == 1 else 0.03) if step_s > 1e-3 else 0.0
    return 0.3 if step_s < 2e-3 else 0.0


def build_cost(candidate: Candidate) -> float:
    """Return it in terms of a plain graph's."""
    return 4.5 if candidate.jit else 1.0 + candidate.splits / 4


def steps_of_a_timed_call(step_s: float) -> int:
    """Return how many steps a call has that is timed."""
    return max(1, min(4000, round(_CALL_S / step_s)))
