"""The trainer on a GPU. Skipped, with the reason, where TensorFlow sees none.

`scripts/test.sh` hides GPUs unless told otherwise: `CUDA_VISIBLE_DEVICES=0 scripts/test.sh -m gpu`.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# A card is divided before TensorFlow uses it, so in a process of its own.
PROGRAM = """
import sys
import tensorflow as tf
from overlap_train import Trainer, ValidationPolicy
from overlap_train.parallel import split_gpu
from tests.networks import arrays, assert_same_history, assert_same_weights, sequential

workers = 2
if sys.argv[1] == "divided":
    training, validation = split_gpu(2, memory_mib=1024, priorities=(-1, 0))
    workers = [validation, validation]
arguments = dict(batch_size=32, epochs=6, validation_data=arrays(91, 1), verbose=0)
expected, actual = sequential(), sequential()
expected.fit(*arrays(), **arguments)
trainer = Trainer(actual, validation=ValidationPolicy(workers=workers))
trainer.fit(*arrays(), **arguments)
assert_same_history(actual.history.history, expected.history.history, 1e-4)
assert_same_weights(actual, expected, 1e-4)
for variable in actual.trainable_variables:
    assert variable.value.device.endswith("GPU:0"), variable.value.device
assert not any("of a core idle" in message for message in trainer.messages), trainer.messages
"""

PLACED = """
import numpy as np
import tensorflow as tf
from overlap_train._data.array_feed import make_feed
from overlap_train._keras.data import recognize

arrays = np.zeros((64, 28, 28), np.uint8), np.zeros(64, np.int64)
feed = make_feed(recognize(*arrays, batch_size=32, shuffle=True), hold_in_memory=lambda *_: True)
for tensor in tf.nest.flatten(feed.tensors):
    assert tensor.device.endswith("GPU:0"), tensor.device
"""


def run(program: str, *arguments: str) -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow sees")
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("card", ["whole", "divided"])
def test_a_fit_on_a_gpu_equals_keras(card):
    """Validation takes its turn on the whole card, or has a part of it and a stream of its own."""
    run(PROGRAM, card)


def test_arrays_lie_on_the_device_that_trains():
    run(PLACED)
