"""What the clean process of `forked.py` has imported; nothing of it may run TensorFlow."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import overlap_train.trainer  # noqa: F401
import tests.networks  # noqa: F401
