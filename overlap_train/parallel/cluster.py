"""Joining the hosts of a training: checks that name what is wrong before TensorFlow waits for ever.

The description of the cluster comes from `TF_CONFIG`, as TensorFlow, Kubeflow, Ray and others set it, or
from a resolver such as Slurm's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from overlap_train._support.arguments import require_instance, short_repr
from overlap_train.errors import ClusterConfigError
from overlap_train.parallel.cluster_hosts import OWN_ROWS, EvaluatorTask


class TrainingHosts(tf.distribute.cluster_resolver.TFConfigClusterResolver):  # type: ignore[misc]
    """The cluster of `TF_CONFIG` without its evaluator, for which the collectives must not wait."""

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return the hosts that train."""
        jobs = super().cluster_spec().as_dict()
        return tf.train.ClusterSpec({job: hosts for job, hosts in jobs.items() if job != "evaluator"})


def join_cluster(resolver: Any = None, *, own_rows: bool = False) -> tf.distribute.Strategy:
    """Return the strategy of all hosts; call it first in the program, on each of them.

    With `own_rows`, each host passes its own training data to `fit`, such as `dataset.shard(hosts, index)`,
    in batches of any size. A step's batch consists of the batches of all hosts, and an epoch ends when every
    host has used all of its data. Loss and metrics are those of the whole batches. Without `own_rows`, all
    hosts pass the same data and each computes a part of the rows. Validation data is the same on all hosts in
    either case.

    `TF_CONFIG` may name one `evaluator` in addition to the hosts that train. That host gets another strategy,
    under which `Trainer.fit` does not train. With the directory of `ValidationPolicy(evaluator=...)` it
    evaluates what the others write there, until the training ends.

    Args:
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, such as `SlurmClusterResolver()`; None
            reads `TF_CONFIG`.
        own_rows: whether each host passes its own training data; the same on all hosts.

    Returns:
        A MultiWorkerMirroredStrategy, or on the evaluator a strategy for its single device.

    Raises:
        TypeError: `resolver` is not a resolver, or `own_rows` is not True or False.
        ClusterConfigError: `TF_CONFIG` or the resolver's cluster is missing or wrong, or this host's port is
            taken. It is also a ValueError.
    """
    require_instance("own_rows", own_rows, bool, optional=False)
    cluster, task_type, index = _read_tf_config() if resolver is None else _read_resolver(resolver)
    if task_type == "evaluator":
        return EvaluatorTask()
    _require_free(f"{task_type} {index}", cluster[task_type][index])
    training = TrainingHosts() if "evaluator" in cluster else resolver
    strategy = _join(training)
    setattr(strategy, OWN_ROWS, own_rows)
    return strategy


# After 10 s, TensorFlow's default, a short cut of the network ended all hosts.
_HEARTBEAT_MS = 60_000


def _join(resolver: Any) -> tf.distribute.Strategy:
    """Make the strategy, whose hosts give each other up after a minute without a sign of life."""
    eager = context.context()
    configure = functools.partial(eager.configure_coordination_service, heartbeat_timeout_in_ms=_HEARTBEAT_MS)
    eager.configure_coordination_service = configure  # which the strategy calls without a time
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    finally:
        del eager.configure_coordination_service


def program_digest() -> str:
    """Return a digest of the program's main file, or "" where there is none, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _read_tf_config() -> tuple[dict[str, list[str]], str, int]:
    """Return the cluster, and the type and the index of this host's task, as `TF_CONFIG` has them."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError(
            "TF_CONFIG is not set: on each host set it to the cluster and the host's place in it, such as "
            '\'{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}\''
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterConfigError(f"TF_CONFIG is no JSON: {error}; got {short_repr(text)}") from error
    cluster = config.get("cluster") if isinstance(config, dict) else None
    task = config.get("task") if isinstance(config, dict) else None
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    return _checked("TF_CONFIG", cluster, kind, index)


def _read_resolver(resolver: Any) -> tuple[dict[str, list[str]], str, int]:
    """Return the same as a resolver has it."""
    require_instance("resolver", resolver, tf.distribute.cluster_resolver.ClusterResolver)
    spec = resolver.cluster_spec()
    cluster = spec.as_dict() if isinstance(spec, tf.train.ClusterSpec) else None
    if cluster and "evaluator" in cluster:
        raise ClusterConfigError("a cluster with an evaluator has to come from TF_CONFIG, not a resolver")
    return _checked("the resolver", cluster, resolver.task_type, resolver.task_id)


def _checked(
    source: str, cluster: object, kind: object, index: object
) -> tuple[dict[str, list[str]], str, int]:
    """Return a cluster and the place of this host in it, if they are what they have to be."""
    if not isinstance(cluster, dict) or not all(isinstance(hosts, list) for hosts in cluster.values()):
        raise ClusterConfigError(
            f"{source} needs a 'cluster' with lists of 'host:port' by task type; got {short_repr(cluster)}"
        )
    for job, hosts in cluster.items():
        for number, address in enumerate(hosts):
            _check_address(source, f"{job} {number}", address)
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator"})
    if unknown or not set(cluster) - {"evaluator"}:
        raise ClusterConfigError(
            f"{source} has tasks of type {', '.join(unknown or cluster) or 'none'}; use 'worker' or "
            "'chief', and besides them 'evaluator'"
        )
    for single in ("chief", "evaluator"):
        if len(cluster.get(single, "1")) != 1:
            raise ClusterConfigError(f"{source} has {len(cluster[single])} {single}s; name one, or none")
    addresses = [address for hosts in cluster.values() for address in hosts]
    if len(set(addresses)) < len(addresses):
        raise ClusterConfigError(f"{source} names an address twice: {', '.join(sorted(addresses))}")
    task_type, number = _checked_task(source, cluster, kind, index)
    return cluster, task_type, number


def _checked_task(source: str, cluster: dict[str, list[str]], kind: object, index: object) -> tuple[str, int]:
    """Return the type and the index of a task, if the cluster has it."""
    if not isinstance(kind, str) or index is None:
        task = {"type": kind, "index": index}
        raise ClusterConfigError(
            f"{source} needs a 'task' that says which host of its cluster this is, such as "
            f'{{"type": {json.dumps(next(iter(cluster)))}, "index": 0}}; got {short_repr(task)}'
        )
    if kind not in cluster:
        raise ClusterConfigError(
            f"{source} says that this is a {short_repr(kind)}, which is not in its cluster; it has "
            f"{', '.join(map(repr, cluster))}"
        )
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise ClusterConfigError(
            f"{source} says that this is {kind} number {short_repr(index)}, and the cluster has "
            f"{len(cluster[kind])}: the index counts from 0"
        )
    return kind, index


def _check_address(source: str, task: str, address: object) -> None:
    """Raise ClusterConfigError unless an address is `host:port` or `[IPv6]:port`."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not (port.isascii() and port.isdigit()):
        wanted = f"{task} must be a string 'host:port'"
    elif len(port) > 5 or not 1 <= int(port) <= 65535:
        wanted = f"the port of {task} must be from 1 to 65535"
    else:
        return
    raise ClusterConfigError(
        f"{source} needs a 'cluster' with lists of 'host:port' by task type: {wanted}; got "
        f"{short_repr(address)}"
    )


def _require_free(task: str, address: str) -> None:
    """Raise ClusterConfigError if TensorFlow could not listen at the port of this host's own task."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("", port))
    except OSError as error:
        raise ClusterConfigError(
            f"port {port} of {task} ({address}) is taken on this host: {os.strerror(error.errno or 0)}; "
            "end what uses it (an earlier run?) or name another port in TF_CONFIG on all hosts"
        ) from error
