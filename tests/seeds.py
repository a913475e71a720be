"""Seeds for Keras that leave TensorFlow's kernels as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import keras
from tensorflow.python.eager import context


@contextlib.contextmanager
def kernels_are_kept() -> Iterator[None]:
    """Lets `tf.random.set_seed` set the seed only.

    It also forgets all kernels, so that operations that draw eagerly begin anew; then every function that is
    called next is optimised and instantiated once more, which takes half a second for a small `fit`.
    """
    kept = mock.Mock(wraps=context.pywrap_tfe, TFE_ContextClearCaches=lambda handle: None)
    with mock.patch.object(context, "pywrap_tfe", kept):
        yield


def set_random_seed(seed: int) -> None:
    """Does what `keras.utils.set_random_seed` does, for models that draw by Keras's generators alone."""
    with kernels_are_kept():
        keras.utils.set_random_seed(seed)
