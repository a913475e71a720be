"""A pytest plugin: TensorFlow's operations repeat bit for bit, as comparisons with Keras on a GPU need.

    CUDA_VISIBLE_DEVICES=0 scripts/test.sh -p tests.deterministic tests/whole_fits

Tensor cores compute in float32, too, and not in TF32. Where Keras or TensorFlow refuses something because
operations are to repeat, such as numbers drawn without a seed, a test is skipped. So is what is `cpu_only`.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

_REFUSED = re.compile(
    r"determinism is enabled"
    r"|Model doesn't support `jit_compile=True`"  # which Keras says of all models then
    r"|Deterministic GPU implementation of .* not (currently )?available"
)


@pytest.hookimpl(trylast=True)  # after the root conftest has said how TensorFlow is to begin
def pytest_sessionstart() -> None:
    """Turns determinism on before the first operation, and TF32 off in processes that tests begin, too."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # read by cuBLAS and cuDNN
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.random.set_seed(1)  # while modules are imported, some of which draw


def pytest_collection_finish() -> None:
    """Takes the seed back, which a test may be about."""
    import tensorflow as tf

    tf.random.set_seed(None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """Skips what is refused."""
    report = (yield).get_result()
    if report.failed and call.excinfo is not None and (found := _REFUSED.search(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], f"Skipped: {found.group()}")
