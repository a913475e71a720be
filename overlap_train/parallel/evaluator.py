"""The `evaluator` task: a host that does not train, to which the chief sends what is to be validated.

TensorFlow's convention: `TF_CONFIG` names it in the cluster, and it is not one of those that train together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train.parallel.credentials import Credentials

__all__ = ["EvaluatorPlace", "EvaluatorTask", "TrainingHosts", "place_of"]


@dataclass(frozen=True)
class EvaluatorPlace:
    """Where the evaluator is.

    Attributes:
        address: `host:port`, at which it listens.
        cluster: describes the whole cluster, to tell it from others.
        timeout_s: how long the chief and the evaluator wait for each other at the start of a `fit`.
        return_s: how long the chief waits for an evaluator that it has lost; 0 does without it at once.
        bind_address: where on its host the evaluator listens; None means at `address`.
        credentials: how the two prove who they are; None reads the key from the environment.
    """

    address: str
    cluster: str
    timeout_s: float
    return_s: float = 0.0
    bind_address: str | None = None
    credentials: Credentials | None = None


class EvaluatorTask(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]  # TensorFlow is untyped
    """What `join_cluster` returns on the evaluator: its first GPU, or its CPU.

    Attributes:
        place: where this host listens.
    """

    def __init__(self, place: EvaluatorPlace) -> None:
        super().__init__("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")
        self.place = place


class TrainingHosts(tf.distribute.cluster_resolver.TFConfigClusterResolver):  # type: ignore[misc]
    """The cluster of `TF_CONFIG` without its evaluator, for which the collectives must not wait.

    Attributes:
        place: where the evaluator listens.
    """

    def __init__(self, place: EvaluatorPlace) -> None:
        super().__init__()
        self.place = place

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return the hosts that train."""
        jobs = super().cluster_spec().as_dict()
        return tf.train.ClusterSpec({job: hosts for job, hosts in jobs.items() if job != "evaluator"})


def place_of(strategy: Any) -> EvaluatorPlace | None:
    """Return where the evaluator is that validates for the hosts of a strategy, or None."""
    resolver = getattr(strategy, "cluster_resolver", None)
    return resolver.place if isinstance(resolver, TrainingHosts) else None
