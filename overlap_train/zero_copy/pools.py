"""The pools that all buffers of this process share, made when first asked for."""

from __future__ import annotations

import os
import threading
from typing import Literal

from overlap_train import errors
from overlap_train._support.arguments import is_text, shown
from overlap_train.zero_copy.cuda import CudaBackend
from overlap_train.zero_copy.pool import HostBackend, Pool

__all__ = ["shared_pool"]

_lock = threading.Lock()
_host = Pool(HostBackend())
_cuda: Pool | errors.NativeUnavailableError | None = None


def shared_pool(backend: Literal["auto", "host", "cuda"] = "auto") -> Pool:
    """Return the pool of a backend; "auto" means "cuda" where that can be had, and "host" elsewhere.

    Whether there is a GPU is found out once for each process.

    Raises:
        ValueError: for another name.
        errors.NativeUnavailableError: for "cuda" where there is no usable GPU.
    """
    if not is_text(backend, "auto", "host", "cuda"):
        raise ValueError(f'backend must be "auto", "host", "cuda" or a Pool, got {shown(backend)}')
    if is_text(backend, "host"):
        return _host
    found = _find_cuda()
    if isinstance(found, Pool):
        return found
    if is_text(backend, "auto"):
        return _host
    raise errors.NativeUnavailableError(str(found)) from found


def _find_cuda() -> Pool | errors.NativeUnavailableError:
    global _cuda
    with _lock:
        if _cuda is None:
            try:
                _cuda = Pool(CudaBackend())
            except errors.NativeUnavailableError as error:
                _cuda = error
        return _cuda


def _after_fork() -> None:
    global _cuda, _lock
    _lock = threading.Lock()
    if isinstance(_cuda, Pool):
        _cuda = errors.NativeUnavailableError("CUDA does not survive a fork: start workers by spawn")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
