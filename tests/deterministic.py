"""A pytest plugin: TensorFlow's operations repeat bit for bit, as comparisons with Keras on a GPU need.

    CUDA_VISIBLE_DEVICES=0 scripts/test.sh -p tests.deterministic tests/whole_fits

An operation that cannot repeat on a GPU raises `UnimplementedError` then, by Keras as by us.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)  # after the root conftest has said how TensorFlow is to begin
def pytest_sessionstart() -> None:
    """Turns determinism on before the first operation."""
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
