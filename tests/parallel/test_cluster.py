"""`join_cluster`: a wrong description of the cluster is refused before TensorFlow waits for anybody."""

from __future__ import annotations

import json
import socket

import pytest

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel import join_cluster
from overlap_train.parallel.cluster import program_digest

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


def test_the_program_has_a_digest():
    assert program_digest() == program_digest()
