"""What hosts have to agree on, and what is refused because it would depend on one host's clock."""

import keras
import pytest
import tensorflow as tf

from overlap_train import EpochOnly, ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.followers import agree_to_start
from overlap_train.errors import HostMismatchError
from tests.fit.requests import request_of
from tests.networks import arrays, looking_up, sequential
from tests.parallel.together import on_hosts

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
kc = keras.callbacks


class Listens(kc.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(logs)


def asked(*, build=sequential, optimizer="adam", policy=None, plan=None, preprocess=None, **given):
    """Returns the request of one host, and its replicas."""
    with STRATEGY.scope():
        model = build(optimizer)
    trainer = Trainer(model, strategy=STRATEGY, validation=policy, execution=plan, preprocess=preprocess)
    return request_of(trainer, **{"validation_data": arrays(91, 1), **given}), trainer.replicas


def agreed(*asking, callbacks=((), ())):
    """Returns what each of several hosts, with callbacks of its own, raises, or None."""

    def work(host):
        request, replicas = asking[host.index]
        replicas.hosts = host
        return agree_to_start(request, replicas, callbacks[host.index])

    return on_hosts(work, len(asking))


def test_hosts_that_are_to_do_the_same_agree_and_have_all_variables():
    both = [asked(), asked()]
    assert agreed(*both) == [None, None]
    for request, _ in both:
        assert request.model.optimizer.built


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"batch_size": 16}, "batch size"),
        ({"epochs": 3}, "number of epochs"),
        ({"plan": ExecutionPlan(batch_splits=1)}, "ExecutionPlan"),
        ({"policy": ValidationPolicy(max_lag=2)}, "ValidationPolicy"),
        ({"x": arrays(100)[0], "y": arrays(100)[1]}, "training data rows"),
        ({"build": looking_up}, "structure of the model"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"build": lambda _: sequential(keras.optimizers.Adam(0.001, beta_1=0.5))}, "optimizer.beta_1"),
        ({"initial_epoch": 1, "epochs": 1}, "initial_epoch"),
        ({"steps_per_epoch": 3, "batch_size": 32}, "steps_per_epoch"),
        ({"validation_data": None}, "validation data"),
        ({"validation_data": arrays(91, 2)}, "validation data content"),
        ({"validation_freq": 2}, "validation data freq"),
        ({"validation_steps": 2}, "validation data steps"),
        ({"validation_batch_size": 7}, "validation data batch_size"),
        ({"preprocess": lambda x, y: (x, y)}, "preprocess"),
    ],
)
def test_what_differs_is_named_on_all_hosts(other, part):
    for error in agreed(asked(), asked(**other)):
        assert isinstance(error, HostMismatchError)
        assert str(error).startswith(f"host 1 has another {part} than the chief: ")


def test_draws_without_a_seed_on_one_host_are_named_on_all_hosts():
    def data(**seed):
        rows = tf.data.Dataset.from_tensor_slices(arrays(32))
        return {"x": rows.map(lambda x, y: (x + tf.random.uniform([], **seed), y)).batch(16), "y": None}

    tf.random.set_seed(None)
    seeded, unseeded = data(seed=1), data()
    for error in agreed(asked(**seeded), asked(**unseeded)):
        assert "host 1 has another list of unseeded draws than the chief: \"['RandomUniform']\"" in str(error)


def test_what_depends_on_a_hosts_clock_is_for_one_host():
    policy = ValidationPolicy(backlog="latest")
    request, replicas = asked(policy=policy)
    agree_to_start(request, replicas, ())
    for error in agreed((request, replicas), asked(policy=policy)):
        with pytest.raises(ValueError, match=r"backlog='latest'\) lets a host's clock decide .* use 'block'"):
            raise error


def everywhere():
    callback = kc.LambdaCallback()
    callback.on_all_hosts = True
    return callback


@pytest.mark.parametrize(
    ("make", "listed"),
    [
        (everywhere, "callbacks with on_all_hosts than the chief: '[]' instead of"),
        (Listens, "callbacks that listen to batches than the chief"),
    ],
)
def test_such_a_callback_is_in_the_list_of_all_hosts(make, listed):
    assert agreed(asked(), asked(), callbacks=[[make()], [make()]]) == [None, None]
    for error in agreed(asked(), asked(), callbacks=[[make()], []]):
        assert f"host 1 has another list of {listed}" in str(error)


@pytest.mark.parametrize("wrap", [lambda callback: callback, EpochOnly])
def test_hooks_of_validations_are_the_chiefs_alone(wrap):
    callback = kc.LambdaCallback()
    callback.on_all_hosts, callback.on_test_end = True, lambda logs: None
    for error in agreed(asked(), asked(), callbacks=[[wrap(callback)]] * 2):
        assert "has on_all_hosts = True and on_test_end, and the hooks of validations" in str(error)


def test_functions_are_compared_by_their_names():
    """Each host has a function object of its own."""
    policies = [ValidationPolicy(functions={"norm": lambda model: 1.0}) for _ in range(2)]
    assert agreed(*(asked(policy=policy) for policy in policies)) == [None, None]
    for error in agreed(asked(policy=policies[0]), asked()):
        assert "host 1 has another list of evaluation functions than the chief" in str(error)
