"""The base class of resources that a `with` statement closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """A context manager that returns itself and is closed at the end of its block."""

    @abstractmethod
    def close(self) -> object:
        """Release the resource. Idempotent."""

    def close_now(self) -> None:
        """Release what needs no wait, after a KeyboardInterrupt: a second signal is to end a program now."""
        self.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.close_now()
        else:
            self.close()
