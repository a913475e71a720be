"""The one owner of how what has a `close` is used in a `with` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """A context manager that returns itself and is closed at the end of the block, whatever happens in it."""

    @abstractmethod
    def close(self) -> object:
        """Give back what is held; does nothing the second time."""

    def close_now(self) -> None:
        """Give back what can be given back without a wait: KeyboardInterrupt ended the block.

        A second signal raises it, which is to end a program now, whatever hangs.
        """
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
