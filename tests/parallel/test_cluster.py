"""`join_cluster`: a wrong description of the cluster is refused before TensorFlow waits for anybody."""

from __future__ import annotations

import json
import socket

import pytest
import tensorflow as tf

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel import join_cluster
from overlap_train.parallel.cluster import program_digest
from overlap_train.parallel.evaluator import EvaluatorPlace, EvaluatorTask, TrainingHosts, place_of

CLUSTER = {"worker": ["localhost:1", "localhost:2"]}


def config(cluster=CLUSTER, **task):
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0} | task})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TF_CONFIG is not set: on each host set it"),
        ("{", "TF_CONFIG is no JSON"),
        ("[]", "TF_CONFIG needs a 'cluster'"),
        ("{}", "TF_CONFIG needs a 'cluster'"),
        (config({"worker": "localhost:1"}), "lists of 'host:port'"),
        (config({"worker": ["localhost"]}), "lists of 'host:port'"),
        (config({"worker": ["localhost:a"]}), "lists of 'host:port'"),
        (config({}), "tasks of type none"),
        (config({"ps": ["a:1"], "worker": ["b:1"]}), "TF_CONFIG has tasks of type ps"),
        (config({"worker": ["a:1", "a:1"]}), "TF_CONFIG names an address twice: a:1, a:1"),
        (config({"evaluator": ["a:1"]}), "TF_CONFIG has tasks of type evaluator; use 'worker'"),
        (config(CLUSTER | {"evaluator": ["a:1", "b:1"]}), "TF_CONFIG has 2 evaluators; name one, or none"),
        (config(CLUSTER | {"evaluator": []}), "TF_CONFIG has 0 evaluators; name one, or none"),
        (config(type="chief"), "this is a 'chief', which is not in its cluster"),
        (config(type=["a"]), r"this is a \['a'\], which is not in its cluster"),
        (json.dumps({"cluster": CLUSTER}), "this is a None, which is not in its cluster"),
        (config(index=2), "this is worker number 2, and the cluster has 2: the index counts from 0"),
        (config(index=-1), "this is worker number -1"),
        (config(index="0"), "this is worker number '0'"),
        (config(index=True), "this is worker number True"),
    ],
)
def test_a_wrong_tf_config_is_refused(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterConfigError, match=message):
        join_cluster()


def test_a_taken_port_is_named(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", config({"worker": [f"localhost:{port}", "localhost:2"]}))
        with pytest.raises(ClusterConfigError, match=f"port {port} of worker 0 .* is taken on this host"):
            join_cluster()


def test_what_is_no_resolver_is_refused():
    with pytest.raises(TypeError, match="resolver must be a ClusterResolver or None; got str"):
        join_cluster("slurm")


@pytest.mark.parametrize(("value", "error"), [("1", TypeError), (True, TypeError), (0, ValueError)])
def test_a_time_out_that_cannot_be_meant_is_refused(value, error):
    with pytest.raises(error, match="evaluator_timeout_s must be"):
        join_cluster(evaluator_timeout_s=value)


def test_an_evaluator_comes_from_tf_config_only():
    spec = tf.train.ClusterSpec(CLUSTER | {"evaluator": ["localhost:3"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with pytest.raises(ClusterConfigError, match="a cluster with an evaluator has to come from TF_CONFIG"):
        join_cluster(resolver)


def test_the_evaluator_gets_a_strategy_of_its_own(monkeypatch):
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"localhost:{free.getsockname()[1]}"
    cluster = CLUSTER | {"evaluator": [address]}
    monkeypatch.setenv("TF_CONFIG", config(cluster, type="evaluator"))
    strategy = join_cluster(evaluator_timeout_s=5)
    assert isinstance(strategy, EvaluatorTask)
    assert (strategy.place.address, strategy.place.timeout_s) == (address, 5)
    assert place_of(strategy) is None, "it is the evaluator, and has none"


def test_the_collectives_do_not_wait_for_the_evaluator(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config(CLUSTER | {"evaluator": ["localhost:3"]}))
    hosts = TrainingHosts(EvaluatorPlace("localhost:3", "", 5))
    assert hosts.cluster_spec().as_dict() == CLUSTER
    assert (hosts.task_type, hosts.task_id) == ("worker", 0)


def test_the_program_has_a_digest():
    assert program_digest() == program_digest()
