"""Steps that replicas share: one here, two logical CPUs in processes of their own (`cases_*.py`)."""

import os
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from overlap_train._training.replicas import make_step
from overlap_train._training.strategy import find_strategy
from tests import interpreters, networks

HERE = Path(__file__).parent
ONE = tf.distribute.OneDeviceStrategy("CPU:0")


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


STEPS = {
    "dropout": (networks.sequential, networks.arrays(75)),
    "sparse gradients": (networks.looking_up, networks.arrays(75)),
    "several outputs": (networks.functional, networks.functional_data(75)),
    "added losses": (lambda: networks.subclassed("sgd"), networks.arrays(75)),
    "a custom step": (lambda: networks.linear(kind=Own), networks.arrays(75)),
}


@pytest.mark.by_default("dropout", "sparse gradients", "added losses", "a custom step")
@pytest.mark.parametrize(("build", "data"), STEPS.values(), ids=STEPS)
def test_the_step_of_replicas_is_on_one_of_them_that_of_keras(build, data):
    with ONE.scope():
        model = build()
    expected, batches = build(), tf.data.Dataset.from_tensor_slices(data).batch(32)
    replicas = find_strategy(model, None)
    replicas.build(model, batches.element_spec)
    stock = not isinstance(model, Own)
    step = tf.function(make_step(model, replicas, model.train_step, stock=stock), autograph=False)
    for batch in batches:
        step(batch)
        expected.train_on_batch(*batch)
    networks.assert_same_weights(model, expected)


def run_cases(name: str, *options: str) -> None:
    """Runs a file of cases with pytest in another process without a GPU, and fails with its output."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, HERE / name]
    interpreters.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True)


FILES = [f"cases_{name}.py" for name in ("numbers", "whole_fit", "refusals", "differential", "own_test_step")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FILES)
# Random runs are nightly: what they combine is in the other files.
@pytest.mark.by_default("cases_refusals.py")
def test_two_logical_cpus(name):
    run_cases(name, "-m", "not nightly")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [name for name in FILES if name != "cases_refusals.py"])
def test_two_logical_cpus_nightly(name):
    run_cases(name, "-m", "nightly")
