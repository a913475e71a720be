"""The random runs of `tests/test_differential.py`, ours on two replicas, Keras's on one device."""

from tests.training.replicas.two_cpus import on_two  # isort: skip  # before anything starts TensorFlow

import keras
import pytest
from hypothesis import given, settings

from tests.networks import functional, sequential, subclassed
from tests.test_differential import BUILDERS, SETTINGS, check, runs

# BatchNormalization takes each replica's own statistics; cases_numbers.py says how that differs. At the rates
# of the other runs the losses of two models swing, which multiplies the rounding of two half sums.
REPLICATED = BUILDERS | {
    "sequential": lambda: sequential(keras.optimizers.SGD(0.05, momentum=0.9)),
    "functional": lambda: functional(rate=0.01),
    "subclassed": lambda: subclassed(keras.optimizers.SGD(0.1), keras.layers.LayerNormalization),
}


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")  # of epochs without a validation
@pytest.mark.filterwarnings("ignore:Can save best model only")
@settings(max_examples=3, **SETTINGS)
@given(run=runs(REPLICATED))
def test_any_run_on_two_replicas_equals_keras_on_one(run):
    check(run, REPLICATED, on_two)


@pytest.mark.nightly
@pytest.mark.timeout(7000)
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")  # of epochs without a validation
@pytest.mark.filterwarnings("ignore:Can save best model only")
@settings(max_examples=100, **(SETTINGS | dict(derandomize=False)))
@given(run=runs(REPLICATED))
def test_any_run_on_two_replicas_equals_keras_on_one_nightly(run):
    check(run, REPLICATED, on_two)
