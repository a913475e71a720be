"""Where the tests' operations run, and how closely results agree there."""

import functools
import os

__all__ = ["sees_gpu", "tolerance"]


@functools.cache
def sees_gpu() -> bool:
    """Whether TensorFlow puts operations on a GPU; imports TensorFlow only if one could be visible."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def tolerance(on_cpu: float, *, on_gpu: float) -> float:
    """Return how far two sums of the same products may differ: cuBLAS and cuDNN order them by the shape."""
    return on_gpu if sees_gpu() else on_cpu
