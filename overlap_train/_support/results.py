"""The metrics of validations under the names that they have in the logs of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap_train.records import ValidationResult


def prefixed(results: Mapping[str, ValidationResult]) -> dict[str, Any]:
    """Return the metrics of all sets with their names in an epoch's logs: `val_loss`, `val_clean_loss`.

    A custom `evaluate` may return nested dicts. Those of the set without a name are kept nested: Keras
    flattens them with the rest of the logs, and so drops their outer names, `val_` too.

    Raises:
        ValueError: a value of an evaluation function has the name of another value.
    """
    logs: dict[str, Any] = {}
    for name, result in results.items():
        for metric, value in (flat(result.metrics) if name else result.metrics).items():
            key = "_".join(part for part in ("val", name, metric) if part)
            if result.of_function and key in logs:
                raise ValueError(
                    f"the evaluation function {name!r} gives a value {key!r}, which another validation "
                    "gives too; give the function, or the value, another name"
                )
            logs[key] = value
    return logs


def flat(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics without nesting: each nested dict is replaced by its items."""
    leaves: dict[str, Any] = {}
    for name, value in metrics.items():
        leaves |= flat(value) if isinstance(value, dict) else {name: value}
    return leaves
