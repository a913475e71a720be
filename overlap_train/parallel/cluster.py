"""Joining the hosts of a training: checks that name what is wrong before TensorFlow waits for ever.

The description of the cluster comes from `TF_CONFIG`, as TensorFlow, Kubeflow, Ray and others set it, or
from a resolver such as Slurm's.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train._support.arguments import plain_text, require_seconds, shown
from overlap_train.errors import ClusterConfigError
from overlap_train.parallel.credentials import Credentials, read_credentials
from overlap_train.parallel.endpoints import is_loopback, listen, parse_endpoint, resolve, why
from overlap_train.parallel.evaluator import EvaluatorPlace, EvaluatorTask, TrainingHosts
from overlap_train.parallel.tf_config import read_resolver, read_tf_config

__all__ = ["join_cluster", "program_digest"]


def join_cluster(
    resolver: Any = None,
    *,
    evaluator_timeout_s: float = 600.0,
    evaluator_return_s: float | None = None,
    key_file: str | os.PathLike[str] | None = None,
    allow_unauthenticated: bool = False,
    bind_address: str | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_authority: str | os.PathLike[str] | None = None,
) -> tf.distribute.Strategy:
    """Return the strategy of all hosts; call it first in the program, on each of them.

    `TF_CONFIG` may name one `evaluator` in addition to the hosts that train. On that host another strategy is
    returned, under which `Trainer.fit` does not train: it validates what the chief sends until the training
    ends. The arguments from `key_file` on are for the connection between chief and evaluator; without an
    evaluator they do nothing.

    Args:
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, such as `SlurmClusterResolver()`; None
            reads `TF_CONFIG`.
        evaluator_timeout_s: seconds that the chief and the evaluator wait for each other when `fit` begins.
        evaluator_return_s: seconds that the chief waits for an evaluator that it has lost to be started
            again; 0 does not wait; None means `evaluator_timeout_s`.
        key_file: a file of mode 0600 with the secret that all hosts share; None reads the environment
            variable `OVERLAP_TRAIN_CLUSTER_KEY`, or the file that `OVERLAP_TRAIN_CLUSTER_KEY_FILE` names.
        allow_unauthenticated: whether the evaluator may be on another machine without a key.
        bind_address: the name or IP address at which the evaluator listens; None means that of its task,
            "0.0.0.0" or "::" means all interfaces.
        tls_certificate: the evaluator's certificate, in PEM. With all three files the connection is
            encrypted.
        tls_key: the private key of that certificate, mode 0600; only the evaluator reads it.
        tls_authority: the certificates, in PEM, against which the chief checks the evaluator's.

    Returns:
        A MultiWorkerMirroredStrategy, or on the evaluator a strategy for its single device.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a time-out is out of range.
        ClusterConfigError: `TF_CONFIG` or the resolver's cluster is missing or wrong, this host's port is
            taken, a key or a file cannot be used, or a key is needed and missing. It is also a ValueError.
    """
    timeout_s = require_seconds("evaluator_timeout_s", evaluator_timeout_s)
    return_s = _check_return(evaluator_return_s, timeout_s)
    if bind_address is not None:
        bind_address = _checked_bind_address(bind_address)
    credentials = read_credentials(
        key_file=key_file,
        allow_unauthenticated=allow_unauthenticated,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_authority=tls_authority,
    )
    cluster, task_type, index = read_tf_config() if resolver is None else read_resolver(resolver)
    if "evaluator" not in cluster:
        _require_free(cluster[task_type][index], f"{task_type} {index}")
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    described = json.dumps(cluster, sort_keys=True)
    address = cluster["evaluator"][0]
    place = EvaluatorPlace(address, described, timeout_s, return_s, bind_address, credentials)
    if task_type == "evaluator":
        _check_door(place, credentials)
        return EvaluatorTask(place)
    _check_way(address, credentials)
    _require_free(cluster[task_type][index], f"{task_type} {index}")
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=TrainingHosts(place))


def program_digest() -> str:
    """Return a digest of the program's main file, or "" where there is none, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _check_return(value: object, timeout_s: float) -> float:
    """Return how long an evaluator that was lost is waited for."""
    return timeout_s if value is None else require_seconds("evaluator_return_s", value, zero=True)


def _checked_bind_address(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"bind_address must be a host name or an IP address; got {shown(value)}")
    value = plain_text(value)
    try:
        parse_endpoint(f"[{value}]:1" if ":" in value else f"{value}:1")
    except ClusterConfigError:
        raise ClusterConfigError(
            f"bind_address must be a host name or an IP address without a port; got {value[:300]!r}"
        ) from None
    return value


def _check_door(place: EvaluatorPlace, credentials: Credentials) -> None:
    """Raise ClusterConfigError if the evaluator could not listen, or must not without a key."""
    if credentials.tls is not None:
        credentials.tls.server_context()
    endpoint = parse_endpoint(place.address)
    listeners = listen(endpoint if place.bind_address is None else endpoint._replace(host=place.bind_address))
    hosts = [listener.getsockname()[0] for listener in listeners]
    for listener in listeners:
        listener.close()
    credentials.check_place(", ".join(hosts), loopback=all(map(is_loopback, hosts)))


def _check_way(address: str, credentials: Credentials) -> None:
    """Raise ClusterConfigError if this host must not connect to the evaluator."""
    if credentials.tls is not None:
        credentials.tls.client_context()
    try:
        hosts = [there[0] for _, there in resolve(parse_endpoint(address))]
    except OSError:
        return  # its name may be known later; whoever connects looks again
    credentials.check_place(address, loopback=all(map(is_loopback, hosts)))


def _require_free(address: str, task: str) -> None:
    """Raise ClusterConfigError if TensorFlow could not listen at the port of this host's own task."""
    port = parse_endpoint(address).port
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            socket.create_server((everywhere, port), family=family).close()
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6, or IPv4
                continue
            raise ClusterConfigError(
                f"port {port} of {task} ({address}) is taken on this host: {why(error)}; end what uses "
                "it (an earlier run?) or name another port in TF_CONFIG on all hosts"
            ) from error
