"""A wrong description of a cluster is refused before TensorFlow waits for anybody; a slow host is named."""

import json
import socket

import pytest
import tensorflow as tf

from overlap_train.errors import ClusterConfigError, HostMismatchError
from overlap_train.parallel import join_cluster
from overlap_train.parallel.cluster import _read_resolver, _read_tf_config
from overlap_train.parallel.cluster_hosts import ClusterHosts, EvaluatorTask, find_slow_host
from overlap_train.parallel.hosts import SlowHost

CLUSTER = {"worker": ["localhost:1", "localhost:2"]}


def config(cluster=CLUSTER, **task):
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0} | task})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TF_CONFIG is not set: on each host set it"),
        ("{", "TF_CONFIG is no JSON"),
        (config({"worker": "localhost:1"}), "lists of 'host:port'"),
        (config({"ps": ["a:1"], "worker": ["b:1"]}), "TF_CONFIG has tasks of type ps"),
        (config({"worker": ["a:1", "a:1"]}), "TF_CONFIG names an address twice: a:1, a:1"),
        (config({"evaluator": ["a:1"]}), "TF_CONFIG has tasks of type evaluator; use 'worker'"),
        (config(CLUSTER | {"evaluator": ["a:1", "b:1"]}), "TF_CONFIG has 2 evaluators; name one, or none"),
        (config(type="chief"), "this is a 'chief', which is not in its cluster; it has 'worker'"),
        (config(type=["a"]), r"needs a 'task' that says which .*; got {'index': 0, 'type': \['a'\]}"),
        (
            json.dumps({"cluster": CLUSTER}),
            r"needs a 'task' .*, such as {.type.: .worker., .index.: 0}; got",
        ),
        (config(index=2), "this is worker number 2, and the cluster has 2: the index counts from 0"),
        (config({"worker": ["a:99999"]}), "the port of worker 0 must be from 1 to 65535; got 'a:99999'"),
        (config(CLUSTER | {"chief": ["a:1", "b:1"]}), "TF_CONFIG has 2 chiefs; name one, or none"),
    ],
)
def test_a_wrong_tf_config_is_refused(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterConfigError, match=message):
        _read_tf_config()


def resolver(jobs, kind=None, number=None):
    spec = tf.train.ClusterSpec(jobs)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=kind, task_id=number)


@pytest.mark.parametrize(
    ("jobs", "place", "message"),
    [
        (CLUSTER, (), "the resolver .*needs a 'task' that says which host of its cluster this is"),
        (CLUSTER, ("worker", 3), "the resolver .*this is worker number 3, and the cluster has 2"),
        (CLUSTER | {"evaluator": ["a:3"]}, ("worker", 0), "has to come from TF_CONFIG, not a resolver"),
    ],
)
def test_a_wrong_resolver_is_refused(jobs, place, message):
    with pytest.raises(ClusterConfigError, match=message):
        _read_resolver(resolver(jobs, *place))


def test_what_is_no_bool_and_no_resolver_is_refused():
    with pytest.raises(TypeError, match="own_rows must be a bool; got str"):
        join_cluster(own_rows="yes")
    with pytest.raises(TypeError, match="resolver must be a ClusterResolver or None; got str"):
        _read_resolver("slurm")


def test_what_is_right_comes_back(monkeypatch):
    cluster = CLUSTER | {"chief": ["localhost:3"], "evaluator": ["[::1]:4"]}
    monkeypatch.setenv("TF_CONFIG", config(cluster, type="worker", index=1))
    assert _read_tf_config() == (cluster, "worker", 1)
    assert _read_resolver(resolver(CLUSTER, "worker", 0)) == (CLUSTER, "worker", 0)


def test_a_taken_port_is_named(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", config({"worker": [f"localhost:{port}", "localhost:2"]}))
        with pytest.raises(ClusterConfigError, match=f"port {port} of worker 0 .* is taken on this host"):
            join_cluster()


def test_the_evaluator_gets_a_strategy_of_its_own(monkeypatch):
    text = config(CLUSTER | {"evaluator": ["localhost:3"]}, type="evaluator")
    monkeypatch.setenv("TF_CONFIG", text)
    assert isinstance(join_cluster(), EvaluatorTask)


@pytest.mark.parametrize(
    ("waits_s", "trained_s", "expected"),
    [
        ([3.0, 1.0], 10.0, SlowHost(1, 2.0)),
        ([1.0, 3.0], 10.0, SlowHost(0, 2.0)),
        ([3.0, 3.5, 0.5, 4.0], 10.0, SlowHost(2, 3.0)),
        ([3.0, 2.5], 10.0, None),  # half a second of ten
        ([0.3, 0.15], 0.4, None),  # a large part of next to nothing
        ([2.0, 2.0, 2.0], 10.0, None),
        ([0.0, 0.0], 0.0, None),
        ([5.0], 10.0, None),
    ],
)
def test_a_host_is_named_only_if_it_stands_out(waits_s, trained_s, expected):
    assert find_slow_host(waits_s, trained_s) == expected


def test_a_host_that_is_elsewhere_in_the_program_is_no_partner(monkeypatch):
    hosts = ClusterHosts(EvaluatorTask(), 2, 0)
    monkeypatch.setattr(hosts, "sum", lambda tensors: [2 * tensor for tensor in tensors])
    assert hosts.numbers([1.0]).tolist() == [[2.0], [0.0]]
    monkeypatch.setattr(hosts, "sum", lambda tensors: [tensor + 7 for tensor in tensors])
    with pytest.raises(HostMismatchError, match=r"host 0 is at \S+no_partner, and another one is not"):
        hosts.numbers([1.0])
