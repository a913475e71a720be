"""What a trainer was given decides how its steps are told apart, and who trains and validates with it."""

from __future__ import annotations

import dataclasses

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train.parallel.hosts import EvaluatorTask, SingleHost
from tests.networks import sequential
from tests.parallel.together import ThreadHost

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


class OwnSteps(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)

    def validation_step(self, batch):
        return super().validation_step(batch)


class OwnModel(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.fixture(scope="module")
def model():
    return sequential()


@pytest.fixture
def replicated():
    with STRATEGY.scope():
        model = sequential()
    return Trainer(model, strategy=STRATEGY)._settings()


def test_alone_it_shares_nothing_and_serves_nobody(model):
    settings = Trainer(model)._settings()
    assert type(settings.hosts) is SingleHost
    assert (settings.shared, settings.serves, settings.validates_alone) == (False, False, True)
    with settings.scope():
        assert not tf.distribute.has_strategy()
    step = object()
    assert settings.around()(step) is step


def test_under_a_strategy_of_one_replica_its_step_runs_in_its_scope(replicated):
    assert not replicated.shared
    replica = replicated.around()(lambda batch: tf.distribute.get_replica_context())(None)
    assert replica.strategy is STRATEGY
    with replicated.scope():
        assert tf.distribute.get_strategy() is STRATEGY


@pytest.mark.nightly
def test_replicas_that_share_a_batch_run_the_step_themselves(replicated):
    replicated.replicas.count = 2
    assert replicated.shared
    step = object()
    assert replicated.around()(step) is step


def test_who_validates_elsewhere_or_with_others_does_not_validate_alone(replicated):
    assert replicated.validates_alone
    elsewhere = dataclasses.replace(replicated, validation=ValidationPolicy(evaluator="run"))
    assert not elsewhere.validates_alone
    replicated.replicas.hosts = ThreadHost(0, [None, None], None)
    assert replicated.hosts.count == 2
    assert not replicated.validates_alone


def test_devices_of_the_policy_come_before_those_of_the_replicas(replicated):
    assert replicated.devices == ()
    replicated.replicas.__class__ = type(
        "Spread", (type(replicated.replicas),), {"spread": ("CPU:0", "CPU:1")}
    )
    assert replicated.devices == ("CPU:0", "CPU:1")
    named = dataclasses.replace(replicated, validation=ValidationPolicy(workers=["CPU:0"]))
    assert named.devices == ("CPU:0",)


def test_an_evaluator_serves():
    strategy = EvaluatorTask()
    with strategy.scope():
        model = sequential()
    assert Trainer(model, strategy=strategy)._settings().serves


def test_the_models_own_steps_are_the_same_for_every_trainer(model):
    first, second = (Trainer(model)._settings() for _ in range(2))
    assert first.train_identity == second.train_identity
    assert first.validation_identity == second.validation_identity
    own = OwnSteps(model)._settings()
    assert own.train_identity != first.train_identity
    assert own.validation_identity != first.validation_identity
    assert own.train_identity != own.validation_identity


def test_a_strategy_makes_another_step_of_the_same(model, replicated):
    assert replicated.train_identity != Trainer(model)._settings().train_identity
    assert replicated.validation_identity != Trainer(model)._settings().validation_identity


def test_a_step_is_keras_s_own_only_if_trainer_and_model_leave_it_alone(model):
    assert Trainer(model)._settings().stock_step
    assert not OwnSteps(model)._settings().stock_step
    own = OwnModel([keras.Input((2,)), keras.layers.Dense(1)])
    assert Trainer(own)._settings().stock
    assert not Trainer(own)._settings().stock_step


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
