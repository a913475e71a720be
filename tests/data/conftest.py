"""Shared by the tests of data."""

import keras
import pytest
import tensorflow as tf


@pytest.fixture
def unseeded():
    """Lets TensorFlow draw without a global seed."""
    tf.random.set_seed(None)
    yield
    keras.utils.set_random_seed(0)
