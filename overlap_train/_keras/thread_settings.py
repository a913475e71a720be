"""What Keras keeps for each thread, for a thread that stands in for another.

Leans on `global_state`, in which `custom_object_scope`, `keras.config.set_dtype_policy` and others write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap_train._keras.names import global_state

__all__ = ["KerasSettings"]

_NAMES = (
    *("custom_objects_scope_dict", "dtype_policy", "flash_attention"),
    *("interactive_logging", "traceback_filtering"),
)


@dataclass(frozen=True)
class KerasSettings:
    """The settings of one thread at one time, by Keras's names; None for those that have not been set."""

    values: Mapping[str, Any]

    @classmethod
    def of_this_thread(cls) -> KerasSettings:
        """Return those of the calling thread."""
        return cls({name: _copied(global_state.get_global_attribute(name)) for name in _NAMES})

    def apply(self) -> None:
        """Make them hold on the calling thread."""
        for name, value in self.values.items():
            global_state.set_global_attribute(name, _copied(value))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
