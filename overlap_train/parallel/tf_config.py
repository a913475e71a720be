"""The cluster and this host's place in it, as `TF_CONFIG` or a resolver describes them, checked."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from overlap_train.errors import ClusterConfigError
from overlap_train.parallel.endpoints import parse_endpoint

__all__ = ["read_resolver", "read_tf_config"]


def read_tf_config() -> tuple[dict[str, list[str]], str, int]:
    """Return the cluster, and the type and the index of this host's task, as `TF_CONFIG` has them.

    Raises:
        ClusterConfigError: a ValueError, if it is missing or wrong.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError(
            "TF_CONFIG is not set: on each host set it to the cluster and the host's place in it, such as "
            '\'{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}\''
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterConfigError(f"TF_CONFIG is no JSON: {error}; got {text[:200]!r}") from error
    cluster = config.get("cluster") if isinstance(config, dict) else None
    task = config.get("task") if isinstance(config, dict) else None
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    return _checked("TF_CONFIG", cluster, kind, index)


def read_resolver(resolver: Any) -> tuple[dict[str, list[str]], str, int]:
    """Return the cluster, and the type and the index of this host's task, as a resolver has them.

    Raises:
        TypeError: if it is not a resolver.
        ClusterConfigError: a ValueError, if its cluster is wrong, or has an evaluator.
    """
    if not isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise TypeError(f"resolver must be a ClusterResolver or None; got {type(resolver).__name__}")
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
            f"{source} needs a 'cluster' with lists of 'host:port' by task type; got {_short(cluster)}"
        )
    for job, hosts in cluster.items():
        _check_addresses(source, job, hosts)
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
            f'{{"type": {json.dumps(next(iter(cluster)))}, "index": 0}}; got {_short(task)}'
        )
    if kind not in cluster:
        raise ClusterConfigError(
            f"{source} says that this is a {_short(kind)}, which is not in its cluster; it has "
            f"{', '.join(map(repr, cluster))}"
        )
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise ClusterConfigError(
            f"{source} says that this is {kind} number {_short(index)}, and the cluster has "
            f"{len(cluster[kind])}: the index counts from 0"
        )
    return kind, index


def _check_addresses(source: str, job: str, hosts: list[Any]) -> None:
    """Raise ClusterConfigError unless each address of a task type is `host:port`."""
    for number, address in enumerate(hosts):
        try:
            parse_endpoint(address, f"{job} {number}")
        except (TypeError, ValueError) as error:
            raise ClusterConfigError(
                f"{source} needs a 'cluster' with lists of 'host:port' by task type: {error}"
            ) from error


def _short(value: object) -> str:
    return repr(value)[:200]
