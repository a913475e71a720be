"""What a trainer was given decides how its steps are told apart, and who trains and validates with it."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.networks import sequential

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


class OwnSteps(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)

    def validation_step(self, batch):
        return super().validation_step(batch)


@pytest.fixture(scope="module")
def model():
    return sequential()


@pytest.fixture
def replicated():
    with STRATEGY.scope():
        model = sequential()
    return Trainer(model, strategy=STRATEGY)._settings()


def test_devices_of_the_policy_come_before_those_of_the_replicas(replicated):
    assert replicated.devices == ()
    replicated.replicas.__class__ = type(
        "Spread", (type(replicated.replicas),), {"spread": ("CPU:0", "CPU:1")}
    )
    assert replicated.devices == ("CPU:0", "CPU:1")
    named = dataclasses.replace(replicated, validation=ValidationPolicy(workers=["CPU:0"]))
    assert named.devices == ("CPU:0",)


def test_the_models_own_steps_are_the_same_for_every_trainer(model):
    first, second = (Trainer(model)._settings() for _ in range(2))
    assert first.train_identity == second.train_identity
    assert first.validation_identity == second.validation_identity
    own = OwnSteps(model)._settings()
    assert own.train_identity != first.train_identity
    assert own.validation_identity != first.validation_identity
    assert own.train_identity != own.validation_identity


@pytest.mark.parametrize(
    ("loop", "size_bytes", "held"),
    [
        ("auto", 100, True),
        ("auto", 101, False),
        ("in_memory", 101, True),
        ("iterator", 1, False),
    ],
)
def test_arrays_are_held_up_to_a_size_unless_the_plan_says_otherwise(model, loop, size_bytes, held):
    trainer = Trainer(model, execution=ExecutionPlan(loop=loop), in_memory_bytes=100)
    assert trainer._settings().holds_in_memory(size_bytes) is held
