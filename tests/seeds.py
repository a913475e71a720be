"""Seeds for Keras that leave TensorFlow's kernels as they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from unittest import mock

import keras
from tensorflow.python import pywrap_tfe

_LOCK = threading.RLock()


@contextlib.contextmanager
def kernels_are_kept() -> Iterator[None]:
    """Lets `tf.random.set_seed` set the seed only.

    It also forgets all kernels, so that operations that draw eagerly begin anew; then every function that is
    called next is optimised and instantiated once more, which takes half a second for a small `fit`.
    """
    with _LOCK, mock.patch.object(pywrap_tfe, "TFE_ContextClearCaches"):
        yield


def set_random_seed(seed: int) -> None:
    """Does what `keras.utils.set_random_seed` does, for models that draw by Keras's generators alone."""
    with kernels_are_kept():
        keras.utils.set_random_seed(seed)
