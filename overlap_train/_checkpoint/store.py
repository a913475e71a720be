"""The directory of a training's checkpoints: locked, written atomically, kept a few deep, read newest first.

A checkpoint is written under another name, made durable, renamed, and the rename made durable. Only then are
older ones deleted. So a crash at any moment leaves the old ones or the new one, and never a half.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState, sync_directory
from overlap_train._support.closing import Closing
from overlap_train._support.files import open_lock, try_lock
from overlap_train.errors import CheckpointCorruptError, CheckpointError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DirectoryLock:
    """Keeps other writers, in this process and in others, out of a directory.

    Use it from one thread at a time.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, unless this object holds it.

        CheckpointError means that another store holds it, OSError that the lock file cannot be made.
        """
        if self._descriptor is not None:
            return
        descriptor = open_lock(self._directory / ".lock")
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _locks.add(self)

    def release(self) -> None:
        """Give the lock back; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            is_free = try_lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            warnings.warn(
                f"The file system of {self._directory} has no locks, so nothing keeps a second training from "
                "writing its checkpoints there.",
                RuntimeWarning,
                stacklevel=5,
            )
            is_free = True
        if not is_free:
            raise CheckpointError(
                f"Another training writes its checkpoints into {self._directory}. Wait until it has ended, "
                "or give this one another directory."
            )

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            warnings.warn(f"The lock of {self._directory} was not released.", ResourceWarning, stacklevel=1)
            self.release()


_locks: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close a forked child's copies, with which an orphaned worker would hold a dead run's lock."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)


# With more digits the next name would be too long for a file system sooner than the numbers were used up.
_NAME = re.compile(r"ckpt-([0-9]{6,18})\.otck")
_LEFTOVER = re.compile(r"\.ckpt-[0-9]{6,18}-[0-9a-f]{16}\.otck")


class CheckpointStore(Closing):
    """Saves and loads the checkpoints of one training in one directory.

    Checkpoints are numbered in the order of their writing, `ckpt-000012.otck`, and not by epoch: a rollback
    may go back in epochs, and the newest state is the one to resume from. Loading needs no lock. The first
    `save` or `acquire` locks the directory until `close`. Use a store from one thread at a time.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        """Neither read nor make anything before the first use; `keep` is how many checkpoints stay."""
        self._directory = Path(directory)
        self._keep = keep
        self._lock = DirectoryLock(self._directory)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The checkpoints, oldest first; they may be damaged."""
        try:
            numbered = [(int(m[1]), p) for p in self._directory.iterdir() if (m := _NAME.fullmatch(p.name))]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CheckpointError(
                f"The checkpoints in {self._directory} cannot be listed: {error}. Give another directory."
            ) from error
        return tuple(path for _, path in sorted(numbered))

    def acquire(self) -> None:
        """Make the directory and lock it until `close`, unless it is locked already.

        CheckpointError: another training holds it, or it cannot be made.
        """
        try:
            if not self._directory.is_dir():
                self._directory.mkdir(parents=True, exist_ok=True)
                sync_directory(self._directory.parent)
            self._lock.acquire()
        except OSError as error:
            raise CheckpointError(
                f"Checkpoints cannot be written into {self._directory}: {error}. Give another directory."
            ) from error

    def save(self, state: CheckpointState) -> Path:
        """Write a checkpoint, delete those that are too many, and return its path; it is durable then.

        If it cannot be written, such as on a full disk, a CheckpointError says why, and older ones are as
        before.
        """
        pieces = container.encode(state)
        self.acquire()
        path = self._next_path()
        try:
            for leftover in self._directory.iterdir():  # of a crash; with the lock, nobody else is writing
                if _LEFTOVER.fullmatch(leftover.name):
                    os.unlink(leftover)
            container.write(path, pieces)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be written: {error}. Older checkpoints are as before."
            ) from error
        self._prune()
        return path

    def load_latest(self, check: Callable[[CheckpointState], Any] = lambda state: state) -> Any:
        """Return what `check` returns for the newest sound checkpoint; None where there is no checkpoint.

        Warns of damaged ones. `check` raises CheckpointCorruptError for a state that is invalid to the
        training that wants it, which is then passed over too, and CheckpointMismatchError for that of another
        training, which ends the search. If all are damaged, that is a CheckpointCorruptError; a directory or
        a checkpoint that may be sound and cannot be read is a CheckpointError.
        """
        reasons: dict[Path, str] = {}
        for path in reversed(self.paths):
            try:
                content = check(container.read(path))
            except CheckpointCorruptError as error:
                reasons[path] = str(error.__cause__ or error)
                continue
            if reasons:
                warnings.warn(
                    f"Resuming from {path}, because newer checkpoints cannot be used ({_in_words(reasons)}).",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return content
        if reasons:
            raise CheckpointCorruptError(
                f"None of the {len(reasons)} checkpoints in {self._directory} can be used "
                f"({_in_words(reasons)}). Put a sound one there, or give another directory to start afresh."
            )
        return None

    def close(self) -> None:
        """Unlock the directory; may be called again."""
        self._lock.release()

    def _next_path(self) -> Path:
        paths = self.paths
        number = 1 + (int(_NAME.fullmatch(paths[-1].name)[1]) if paths else 0)  # type: ignore[index]
        return self._directory / f"ckpt-{number:06d}.otck"

    def _prune(self) -> None:
        """Delete all but the newest that are to be kept."""
        for path in self.paths[: -self._keep]:
            try:
                os.unlink(path)
            except OSError as error:
                warnings.warn(f"The old checkpoint {path} stays: {error}.", RuntimeWarning, stacklevel=3)


def _in_words(reasons: Mapping[Path, str]) -> str:
    return "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items())
