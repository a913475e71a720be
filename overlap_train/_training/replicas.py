"""One training step on several replicas: the numbers of one device on the whole batch.

Each replica takes its own rows of the global batch through the model. What follows is that of one device:

    y_k = f(x_k; w) on replica k,    y = (y_1, y_2, ...) on every replica,
    L = compute_loss(y_true, y),     dL/dw = sum_k (dy_k/dw)^T dL/dy_k + direct terms (regularisers).

So any loss, reduction, mask, sample weights and sizes of the shares are right, the gradient of the whole
batch is clipped and scaled, and metrics of any kind count each row once: the first replica on each host
computes them. The replicas meet twice in a step: to put the outputs together, and to add the gradients. A
replica without rows takes one that counts nothing through the model and adds zeros.

A custom `train_step` cannot be taken apart so. It runs on each replica's rows as under Keras.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas
from overlap_train._keras import training as keras_training
from overlap_train._training.own_rows import OwnShare, read_by_all
from overlap_train._training.parts import (
    BeginPart,
    Outputs,
    Share,
    leaves_of,
    row_count,
    rows_between,
    whole_batch_dropout,
)
from overlap_train._training.step import Batch, Logs, StepFunction
from overlap_train._training.strategy import Replicas, shares_of


def number_type(dtype: tf.DType) -> tf.DType:
    """Return the type in which values of a type are added over hosts; adding zeros changes none of them."""
    return dtype if dtype.is_floating else tf.float64


def add_shared(gradients: tuple[Any, Any], count: int) -> Any:
    """Add a replica's gradient to its part of the one that all replicas have alike."""
    own, direct = gradients
    if direct is None:
        return own
    part = tf.convert_to_tensor(direct) / tf.cast(count, direct.dtype)
    return part if own is None else tf.convert_to_tensor(own) + part


def added(parts: Sequence[Any]) -> Any:
    """Add the replicas' parts of one gradient; sparse ones stand one behind the other, as on one device."""
    if not all(isinstance(part, tf.IndexedSlices) for part in parts):
        return tf.add_n([tf.convert_to_tensor(part) for part in parts])
    values = tf.concat([part.values for part in parts], axis=0)
    indices = tf.concat([part.indices for part in parts], axis=0)
    return tf.IndexedSlices(values, indices, parts[0].dense_shape)


def make_step(
    model: keras.Model,
    replicas: Replicas,
    function: StepFunction,
    *,
    stock: bool,
    most_rows: int | None = None,
) -> StepFunction:
    """Return the step of a global batch on several replicas, all of them.

    `stock` says that `function` is Keras's own `train_step`. On several hosts, calls of many steps need to
    know the most rows of a batch. A custom step is a ValueError where a host may bring no rows.
    """
    if stock:
        return ReplicaStep(model, replicas, most_rows)
    if replicas.own_rows:
        raise ValueError(
            "a train_step of your own would be run without rows where a host's data has ended; override "
            "compute_loss instead, or give all hosts the same data (own_rows=False)"
        )
    return OwnReplicaStep(replicas, function)


@dataclass(frozen=True)
class SingleReplicaStep:
    """A step on the only replica of a strategy, as without one."""

    replicas: Replicas
    function: StepFunction

    def __call__(self, batch: Batch) -> Logs:
        """Make one step. Called while tracing, on the training thread, outside any replica."""
        strategy = self.replicas.strategy
        logs = strategy.run(_as_it_is(lambda: self.function(batch)))
        return keras.tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], logs)


@dataclass(frozen=True)
class OwnReplicaStep:
    """A step of the user's own, on each replica with its rows; the logs are their means over the replicas.

    Losses are divided by the number of replicas where Keras divides them, so gradients are those of Keras's
    `fit`: shares count alike, however many rows they have.
    """

    replicas: Replicas
    function: StepFunction

    def __call__(self, batch: Batch) -> Logs:
        """Make one step. Called while tracing, on the training thread, outside any replica."""
        strategy = self.replicas.strategy
        shares = shares_of(row_count(leaves_of(batch)[0]), self.replicas.count)
        parts = [rows_between(batch, begin, begin + size) for begin, size in shares]

        def run() -> Logs:
            return self.function(parts[_replica_number()])

        logs = strategy.run(_as_it_is(run))
        if not isinstance(logs, dict):
            return logs
        return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}


@dataclass(frozen=True)
class ReplicaStep:
    """Keras's own `train_step` on a batch that replicas share; see the module's text."""

    model: keras.Model
    replicas: Replicas
    most_rows: int | None = None

    def __call__(self, batch: Batch) -> Logs:
        """Make one step. Called while tracing, on the training thread, outside any replica."""
        model, strategy = self.model, self.replicas.strategy
        x = keras.utils.unpack_x_y_sample_weight(batch)[0]
        rows = row_count(leaves_of(x)[0])
        shares = shares_of(rows, self.replicas.count)
        logs: list[Logs] = []
        with contextlib.ExitStack() as patches:
            begin_part = whole_batch_dropout(model, patches)
            begin_losses = keras_replicas.keep_added_losses_apart(keras_models.flat_layers(model), patches)
            patches.enter_context(keras_replicas.gradients_already_reduced(model.optimizer))

            def run() -> None:
                number, replicas = _replica_number(), self.replicas
                if replicas.own_rows:
                    share: Share = OwnShare(x, replicas, number)
                else:
                    share = Share(x, rows, *shares[number])
                replica = _Replica(model, replicas, share, begin_part, begin_losses, self.most_rows)
                counts = number == self.replicas.first
                found = replica.train(batch, counts=counts)
                if counts:
                    logs.append(found)

            strategy.run(_as_it_is(run))
        return logs[0]


class _Replica:
    """One replica, while its part of the step is traced."""

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        share: Share,
        begin_part: BeginPart,
        begin_losses: Callable[[], list[keras_replicas.AddedLoss]],
        most_rows: int | None,
    ) -> None:
        self._model = model
        self._count = replicas.count
        self._several_hosts = replicas.hosts.count > 1
        self._own_rows = replicas.own_rows
        self._on_cpus = all("CPU" in device for device in replicas.devices)
        self._waits = replicas.hosts.waits if _replica_number() == replicas.first else None
        self._most_rows = most_rows
        self._share = share
        self._begin_part = begin_part
        self._begin_losses = begin_losses
        self._context = tf.distribute.get_replica_context()

    def train(self, batch: Batch, *, counts: bool) -> Logs:
        """Make this replica's part of a step; the one that `counts` updates the metrics and returns them."""
        model, share = self._model, self._share
        self._begin_part(share.rows, share.start, share.stop, {})
        added = self._begin_losses()
        with tf.GradientTape() as tape:
            outputs = Outputs(keras_training.forward(model, share.x))
        terms = [term for _, term in added]
        whole, total = self._exchange(outputs.tensors, terms)
        if self._own_rows:
            batch = self._gathered_batch(batch)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        layers = [layer for layer, _ in added]

        y_pred, by_output, by_term, direct = self._loss_gradients(
            batch, outputs, whole, list(zip(layers, total, strict=True)), counts=counts
        )
        weights = list(model.trainable_weights)
        if weights:
            targets = [
                (tensor, share.seed(g))
                for tensor, g in zip(outputs.tensors, by_output, strict=True)
                if g is not None
            ]
            targets += [
                (term, g * share.weight(g.dtype))
                for term, g in zip(terms, by_term, strict=True)
                if g is not None
            ]
            leaves, seeds = [leaf for leaf, _ in targets], [seed for _, seed in targets]
            own = tape.gradient(leaves, weights, output_gradients=seeds)
            self._apply([add_shared(pair, self._count) for pair in zip(own, direct, strict=True)], weights)
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)) if counts else {}

    def _exchange(
        self, outputs: Sequence[tf.Tensor], terms: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the outputs of all rows and the weighted sums of the added losses, on every replica."""
        for leaf in outputs:
            if not leaf.shape.rank:
                raise ValueError(
                    f"the model {self._model.name!r} has an output of shape {leaf.shape}, without a row for "
                    "each row of the inputs; replicas cannot share a batch then. Train it on one device, or "
                    "override train_step"
                )
        weighted = [term * self._share.weight(term.dtype) for term in terms]
        *rows, total = self._gathered(outputs, weighted)
        return rows, total

    def _gathered(self, outputs: Sequence[tf.Tensor], terms: Sequence[tf.Tensor]) -> list[Any]:
        """Return the rows of all replicas for each output, and then the list of the terms' sums."""
        if self._several_hosts:
            return self._gathered_from_hosts(outputs, terms)
        size = self._share.size
        own = [leaf[:size] for leaf in outputs]

        def gather(strategy: tf.distribute.Strategy, rows: Any, terms: Any) -> list[Any]:
            local = strategy.experimental_local_results
            return [
                *(tf.concat(local(parts), axis=0) for parts in rows),
                [tf.add_n(local(parts)) for parts in terms],
            ]

        gathered: list[Any] = self._context.merge_call(gather, args=(own, list(terms)))
        for whole, leaf in zip(gathered, outputs, strict=False):
            rows = self._share.rows
            whole.set_shape([rows if isinstance(rows, int) else None, *leaf.shape[1:]])
        return gathered

    def _gathered_from_hosts(self, outputs: Sequence[tf.Tensor], terms: Sequence[tf.Tensor]) -> list[Any]:
        """The same where replicas share no memory: a sum, with zeros for the rows of the others.

        A collective operation must have the same shape in each step of a call; a smaller batch is padded.
        """
        rows = self._share.rows
        most = rows if self._most_rows is None else self._most_rows
        sent = [self._share.padded(tf.cast(t, number_type(t.dtype)), most) for t in outputs]
        summed = self._sum_over_replicas([*sent, *terms])
        whole = [tf.cast(s[:rows], t.dtype) for s, t in zip(summed, outputs, strict=False)]
        for tensor, leaf in zip(whole, outputs, strict=True):
            tensor.set_shape([rows if isinstance(rows, int) else None, *leaf.shape[1:]])
        return [*whole, summed[len(outputs) :]]

    def _gathered_batch(self, batch: Batch) -> Batch:
        """Return what the loss and the metrics read of the batches of all hosts."""
        own = self._share.rows_of(read_by_all(self._model, batch))
        *whole, _ = self._gathered_from_hosts(leaves_of(own), [])
        rest = iter(whole)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), own)

    def _sum_over_replicas(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum each tensor over the replicas; sparse ones stay sparse, in the order of the rows."""
        if self._several_hosts:
            return self._all_reduced(tensors)
        # Where replicas share memory, sparse ones go through it: a collective has one shape within a call.
        # So does all else between CPUs, where strategies of one process mistake each other's collectives.
        shared = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices) or self._on_cpus]
        sent = [i for i in range(len(tensors)) if i not in shared]
        summed = dict(zip(sent, self._all_reduced([tensors[i] for i in sent]), strict=True))
        summed |= zip(shared, self._merged([tensors[i] for i in shared]), strict=True)
        return [summed[i] for i in range(len(tensors))]

    def _all_reduced(self, tensors: Sequence[Any]) -> list[Any]:
        def reduce() -> list[Any]:
            summed = dict[int, Any]()
            for dtype in dict.fromkeys(t.dtype for t in tensors):  # TensorFlow sends those of a call as one
                places = [i for i, t in enumerate(tensors) if t.dtype == dtype]
                sent = [tensors[i] for i in places]
                summed |= zip(places, self._context.all_reduce(tf.distribute.ReduceOp.SUM, sent), strict=True)
            return [summed[i] for i in range(len(tensors))]

        if not tensors:
            return []
        return reduce() if self._waits is None else self._waits.around(tensors, reduce)

    def _merged(self, tensors: Sequence[Any]) -> list[Any]:
        def merge(strategy: tf.distribute.Strategy, tensors: Sequence[Any]) -> list[Any]:
            return [added(strategy.experimental_local_results(parts)) for parts in tensors]

        return list(self._context.merge_call(merge, args=(list(tensors),))) if tensors else []

    def _loss_gradients(
        self,
        batch: Batch,
        outputs: Outputs,
        whole: Sequence[tf.Tensor],
        added: Sequence[keras_replicas.AddedLoss],
        *,
        counts: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Return the whole batch's outputs; the gradients of its loss by them, by added losses, by weights.

        `outputs` are of this replica's rows, `whole` their tensors for all rows.
        """
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        terms = [term for _, term in added]
        with keras_replicas.unscaled_losses(), tf.GradientTape() as tape:
            tape.watch([tensor for tensor in (*whole, *terms) if tensor.dtype.is_floating])
            y_pred = outputs.of(whole)
            with contextlib.nullcontext() if counts else keras_replicas.without_updates(model):
                keras_replicas.place_added_losses(model, added)
                loss = keras_metrics.compute_and_track_loss(model, x, y, y_pred, sample_weight)
                scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, (list(whole), terms, list(model.trainable_weights)))
        return y_pred, *gradients

    def _apply(self, gradients: Sequence[Any], weights: Sequence[keras.Variable]) -> None:
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        reduced: list[Any] = list(gradients)
        for i, value in zip(present, self._sum_over_replicas([gradients[i] for i in present]), strict=True):
            reduced[i] = value
        self._model.optimizer.apply_gradients(zip(reduced, weights, strict=True))


def _as_it_is(function: Callable[[], Any]) -> Callable[[], Any]:
    """Keep AutoGraph, which `Strategy.run` applies, from rewriting a function."""
    return tf.autograph.experimental.do_not_convert(function)


def _replica_number() -> int:
    """Return which replica this thread traces, counted over all hosts."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))
