"""`join_cluster`: a wrong description of the cluster is refused before TensorFlow waits for anybody."""

from __future__ import annotations

import socket

import pytest
import tensorflow as tf
from overlap_train.parallel.evaluator import EvaluatorPlace, place_of

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel import cluster, join_cluster
from overlap_train.parallel.cluster import TrainingHosts, program_digest
from overlap_train.parallel.hosts import EvaluatorTask
from tests.parallel.test_endpoints import without_ipv6
from tests.parallel.test_tf_config import CLUSTER, config


def test_a_taken_port_is_named(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", config({"worker": [f"localhost:{port}", "localhost:2"]}))
        with pytest.raises(ClusterConfigError, match=f"port {port} of worker 0 .* is taken on this host"):
            join_cluster()


def test_a_host_without_ipv6_can_join(monkeypatch):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    monkeypatch.setenv("TF_CONFIG", config({"worker": [f"localhost:{port}", "localhost:2"]}))
    without_ipv6(monkeypatch)
    with taken, pytest.raises(ClusterConfigError, match=f"port {port} of worker 0 .* is taken"):
        join_cluster()
    cluster._require_free(f"localhost:{port}", "worker 0")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *(("1", TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)),
        *((float("nan"), ValueError), (float("inf"), ValueError), (10**400, ValueError)),
    ],
)
def test_a_time_out_that_cannot_be_meant_is_refused(value, error):
    with pytest.raises(error, match="evaluator_timeout_s must be"):
        join_cluster(evaluator_timeout_s=value)
    if value != 0:
        with pytest.raises(error, match="evaluator_return_s must be"):
            join_cluster(evaluator_return_s=value)


@pytest.mark.parametrize(
    ("value", "error"),
    [(1, TypeError), (b"a", TypeError), (["a"], TypeError)]
    + [(text, ValueError) for text in ("", "a b", "a:1", "[::1]", "1.2.3.4:80")],
)
def test_a_bind_address_that_cannot_be_meant_is_refused(value, error):
    with pytest.raises(error, match="bind_address must be a host name or an IP address"):
        join_cluster(bind_address=value)


def evaluator_config(monkeypatch, address, kind):
    """Makes this host the evaluator at an address of port 0, which is replaced, or a worker beside it."""
    with socket.socket() as free:
        free.bind(("", 0))
        evaluator = f"{address}:{free.getsockname()[1]}"
    text = config({"worker": ["localhost:1"], "evaluator": [evaluator]}, type=kind)
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY", raising=False)
    return evaluator


@pytest.mark.parametrize("kind", ["evaluator", "worker"])
def test_an_evaluator_on_a_network_needs_a_key(kind, monkeypatch):
    evaluator_config(monkeypatch, "0.0.0.0", kind)
    with pytest.raises(ClusterConfigError, match=r"no key, and 0\.0\.0\.0.* OVERLAP_TRAIN_CLUSTER_KEY"):
        join_cluster()


def test_with_a_key_or_when_told_so_an_evaluator_is_on_a_network(monkeypatch, tmp_path):
    evaluator_config(monkeypatch, "0.0.0.0", "evaluator")
    assert join_cluster(allow_unauthenticated=True).place.credentials.key is None
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", "k" * 32)
    assert join_cluster().place.credentials.key == b"k" * 32
    key_file = tmp_path / "key"
    key_file.write_text("f" * 32)
    key_file.chmod(0o600)
    assert join_cluster(key_file=key_file).place.credentials.key == b"f" * 32
    key_file.chmod(0o644)
    with pytest.raises(ClusterConfigError, match="key_file must have the mode 0600"):
        join_cluster(key_file=key_file)


def test_an_evaluator_listens_where_it_is_told(monkeypatch):
    evaluator_config(monkeypatch, "192.0.2.77", "evaluator")
    with pytest.raises(ClusterConfigError, match=r"cannot listen at .*192\.0\.2\.77.*bind_address"):
        join_cluster(allow_unauthenticated=True)
    assert join_cluster(bind_address="127.0.0.1").place.bind_address == "127.0.0.1"
    with pytest.raises(ClusterConfigError, match="there is no key"):
        join_cluster(bind_address="0.0.0.0")


def test_a_lost_evaluator_is_waited_for_as_long_as_at_the_start(monkeypatch):
    evaluator_config(monkeypatch, "localhost", "evaluator")
    assert join_cluster(evaluator_timeout_s=7).place.return_s == 7
    assert join_cluster(evaluator_return_s=0).place.return_s == 0
    assert join_cluster(evaluator_return_s=3).place.return_s == 3


def test_files_for_tls_are_tried_before_anything_starts(monkeypatch, tmp_path):
    evaluator_config(monkeypatch, "localhost", "evaluator")
    (tmp_path / "a.pem").write_text("nonsense")
    (tmp_path / "a.pem").chmod(0o600)
    files = dict.fromkeys(("tls_certificate", "tls_key", "tls_authority"), tmp_path / "a.pem")
    with pytest.raises(ClusterConfigError, match="tls_certificate and tls_key cannot be used"):
        join_cluster(**files)


def test_an_evaluator_comes_from_tf_config_only():
    spec = tf.train.ClusterSpec(CLUSTER | {"evaluator": ["localhost:3"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with pytest.raises(ClusterConfigError, match="a cluster with an evaluator has to come from TF_CONFIG"):
        join_cluster(resolver)


def test_the_evaluator_gets_a_strategy_of_its_own(monkeypatch):
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"localhost:{free.getsockname()[1]}"
    monkeypatch.setenv("TF_CONFIG", config(CLUSTER | {"evaluator": [address]}, type="evaluator"))
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
