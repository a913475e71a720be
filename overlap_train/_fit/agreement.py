"""What replicas and hosts have to agree on before they train together. On the training threads."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from overlap_train._callbacks.hooks import wants_train_batches
from overlap_train._checkpoint.fingerprints import fingerprint
from overlap_train._fit.request import FitRequest
from overlap_train._keras import models as keras_models
from overlap_train._support.version import __version__
from overlap_train._training.strategy import Replicas
from overlap_train.options.validation import ValidationPolicy
from overlap_train.parallel.cluster import program_digest

__all__ = ["agree_to_start", "check_without_batches"]


def agree_to_start(
    request: FitRequest, replicas: Replicas, callbacks: Iterable[keras.callbacks.Callback]
) -> None:
    """Checks that all replicas and hosts are about to do the same, and makes the model's variables.

    Args:
        request: what the fit is to do.
        replicas: that share each batch.
        callbacks: as the user passed them.

    Raises:
        ValueError: if something is asked for that is not possible.
        HostMismatchError: if a host differs from the chief.
    """
    model, feed, policy = request.model, request.feed, request.settings.validation
    replicas.check_batch(feed.full_batch)
    if replicas.hosts.count > 1:
        _check_shareable(policy, callbacks)
        feed.share_seeds(replicas.hosts.from_chief)
        if feed.unseeded:
            raise ValueError(
                f"the training data draws without a seed ({', '.join(dict.fromkeys(feed.unseeded))}): each "
                "host would train on other batches; give it one, or call keras.utils.set_random_seed before "
                "the data is made"
            )
        described = {
            "batch size": feed.full_batch,
            "number of epochs": request.epochs,
            "ExecutionPlan": request.settings.execution,
            "ValidationPolicy": policy,
        }
        replicas.hosts.check_same(
            {
                "version of overlap_train": __version__,
                "program": program_digest(),
                **{name: str(value) for name, value in described.items()},
                **{f"training data {part}".strip(): text for part, text in feed.describe().items()},
                "structure of the model": [type(layer).__name__ for layer in keras_models.flat_layers(model)],
            }
        )
    replicas.build(model, feed.element_spec)
    replicas.hosts.check_same(fingerprint(model, feed))


def _check_shareable(policy: ValidationPolicy, callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Refuses what would depend on one host's clock."""
    for name in ("every_steps", "every_seconds"):
        if getattr(policy, name) is not None:
            raise ValueError(f"ValidationPolicy({name}=...) is for one host; leave it out on several")
    if policy.backlog != "block":
        raise ValueError(
            f"ValidationPolicy(backlog={policy.backlog!r}) lets a host's clock decide what is validated; "
            "use 'block' on several hosts"
        )
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ValueError("SwapEMAWeights changes weights before a validation; it is for one host")
    check_without_batches(callbacks)


def check_without_batches(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Refuses callbacks that would have to be called around each step.

    Raises:
        ValueError: naming such a callback.
    """
    for callback in callbacks:
        if wants_train_batches(callback):
            raise ValueError(
                f"{type(callback).__name__} listens to training batches, which is for one host; leave it "
                "out, or use a callback that works at the ends of epochs"
            )
