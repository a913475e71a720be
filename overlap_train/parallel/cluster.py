"""Joining the hosts of a training: checks that name what is wrong before TensorFlow waits for ever.

The description of the cluster comes from `TF_CONFIG`, as TensorFlow, Kubeflow, Ray and others set it, or
from a resolver such as Slurm's.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel.evaluator import EvaluatorPlace, EvaluatorTask, TrainingHosts

__all__ = ["join_cluster", "program_digest"]


def join_cluster(resolver: Any = None, *, evaluator_timeout_s: float = 600.0) -> tf.distribute.Strategy:
    """Returns the strategy of all hosts; call it first in the program, on each of them.

    `TF_CONFIG` may name one `evaluator` beside the hosts that train. It gets a strategy of its own, under
    which `Trainer.fit` does not train: it validates what the chief sends until the training ends.

    Args:
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, such as `SlurmClusterResolver()`; None
            reads `TF_CONFIG`.
        evaluator_timeout_s: seconds that the chief and the evaluator wait for each other when `fit` begins.

    Returns:
        A MultiWorkerMirroredStrategy, or on the evaluator one for its single device.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the time-out is not positive.
        ClusterConfigError: if `TF_CONFIG` is missing or wrong, or this host's port is taken.
    """
    if isinstance(evaluator_timeout_s, bool) or not isinstance(evaluator_timeout_s, (int, float)):
        raise TypeError(f"evaluator_timeout_s must be a number of seconds; got {evaluator_timeout_s!r}")
    if not evaluator_timeout_s > 0:
        raise ValueError(f"evaluator_timeout_s must be positive; got {evaluator_timeout_s!r}")
    if resolver is None:
        cluster, task_type, index = _tf_config()
    elif isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver):
        cluster = resolver.cluster_spec().as_dict()
        task_type, index = resolver.task_type, resolver.task_id
        if "evaluator" in cluster:
            raise ClusterConfigError("a cluster with an evaluator has to come from TF_CONFIG, not a resolver")
    else:
        raise TypeError(f"resolver must be a ClusterResolver or None; got {type(resolver).__name__}")
    _require_free(cluster[task_type][index], f"{task_type} {index}")
    if "evaluator" in cluster:
        described = json.dumps(cluster, sort_keys=True)
        place = EvaluatorPlace(cluster["evaluator"][0], described, float(evaluator_timeout_s))
        if task_type == "evaluator":
            return EvaluatorTask(place)
        resolver = TrainingHosts(place)
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def program_digest() -> str:
    """Returns a digest of the program's main file, or "" where there is none, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _tf_config() -> tuple[dict[str, list[str]], str, int]:
    """Returns the cluster, the type and the index of this host's task."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError(
            "TF_CONFIG is not set: on each host set it to the cluster and the host's place in it, such as "
            '\'{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}\''
        )
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ClusterConfigError(f"TF_CONFIG is no JSON: {error}; got {text[:200]!r}") from error
    cluster = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(cluster, dict) or not all(_are_addresses(hosts) for hosts in cluster.values()):
        raise ClusterConfigError(
            f"TF_CONFIG needs a 'cluster' with lists of 'host:port' by task type; got {text[:200]!r}"
        )
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator"})
    if unknown or not set(cluster) - {"evaluator"}:
        raise ClusterConfigError(
            f"TF_CONFIG has tasks of type {', '.join(unknown or cluster) or 'none'}; use 'worker' or "
            "'chief', and beside them 'evaluator'"
        )
    if len(cluster.get("evaluator", "1")) != 1:
        raise ClusterConfigError(f"TF_CONFIG has {len(cluster['evaluator'])} evaluators; name one, or none")
    addresses = [address for hosts in cluster.values() for address in hosts]
    if len(set(addresses)) < len(addresses):
        raise ClusterConfigError(f"TF_CONFIG names an address twice: {', '.join(sorted(addresses))}")
    task = config.get("task")
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if not isinstance(kind, str) or kind not in cluster:
        raise ClusterConfigError(f"TF_CONFIG says that this is a {kind!r}, which is not in its cluster")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise ClusterConfigError(
            f"TF_CONFIG says that this is {kind} number {index!r}, and the cluster has {len(cluster[kind])}: "
            "the index counts from 0"
        )
    return cluster, kind, index


def _are_addresses(hosts: object) -> bool:
    return isinstance(hosts, list) and all(
        isinstance(host, str) and host.rpartition(":")[0] and host.rpartition(":")[2].isdecimal()
        for host in hosts
    )


def _require_free(address: str, task: str) -> None:
    """Raises ClusterConfigError if the port of this host's own task cannot be listened at."""
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ClusterConfigError(
                f"port {port} of {task} ({address}) is taken on this host: {error.strerror}; end what uses "
                "it (an earlier run?) or name another port in TF_CONFIG on all hosts"
            ) from error
