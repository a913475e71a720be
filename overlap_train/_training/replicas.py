"""One training step on several replicas: the numbers of one device on the whole batch.

Each replica takes its own rows of the global batch through the model. What follows is that of one device:

    y_k = f(x_k; w) on replica k,    y = (y_1, y_2, ...) on every replica,
    L = compute_loss(y_true, y),     dL/dw = sum_k (dy_k/dw)^T dL/dy_k + direct terms (regularisers).

So any loss, reduction, mask, sample weights and sizes of the shares are right, the gradient of the whole
batch is clipped and scaled, and metrics of any kind count each row once: the first replica on each host
computes them. The replicas meet twice in a step: to put the outputs together, and to add the gradients. A
replica without rows takes one that counts nothing through the model and adds zeros.

Where hosts bring rows of their own, a step's batch is what all of them bring, in the order of the hosts. How
many rows there are, targets and sample weights go to all hosts, beside the outputs. A host whose data has
ended brings none while others go on.

A custom `train_step` cannot be taken apart so. It runs on each replica's rows as under Keras.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas
from overlap_train._keras import training as keras_training
from overlap_train._training.parts import (
    Outputs,
    Part,
    Share,
    add_gradients,
    leaves_of,
    named_leaves,
    number_type,
    require_rows,
    row_count,
    rows_between,
    whole_batch_dropout,
)
from overlap_train._training.step import Batch, Logs, StepFunction
from overlap_train._training.strategy import Replicas, shares_by_keras, shares_of

_SUM = tf.distribute.ReduceOp.SUM


def add_shared(gradients: tuple[Any, Any], count: int) -> Any:
    """Add a replica's gradient to its part of the one that all replicas have alike."""
    own, direct = gradients
    if direct is None:
        return own
    part = tf.convert_to_tensor(direct) / tf.cast(count, direct.dtype)
    return part if own is None else tf.convert_to_tensor(own) + part


def make_step(
    model: keras.Model,
    replicas: Replicas,
    function: StepFunction,
    *,
    stock: bool,
    most_rows: int | None = None,
) -> StepFunction:
    """Return the step of a global batch on several replicas, to be traced outside any of them.

    `stock` says that `function` is Keras's own. On several hosts, calls of many steps need to know the most
    rows of a batch. A custom step is a ValueError where a host may bring no rows.
    """
    if stock:
        return _stock_step(model, replicas, most_rows)
    if replicas.own_rows:
        raise ValueError(
            "a train_step of your own would be run without rows where a host's data has ended; override "
            "compute_loss instead, or give all hosts the same data (own_rows=False)"
        )
    return _custom_step(replicas, function)


def on_single_replica(replicas: Replicas, function: StepFunction) -> StepFunction:
    """Return a step on the only replica of a strategy, as without one, to be traced outside it."""

    def step(batch: Batch) -> Logs:
        strategy = replicas.strategy
        logs = strategy.run(_as_it_is(lambda: function(batch)))
        return keras.tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], logs)

    return step


def _custom_step(replicas: Replicas, function: StepFunction) -> StepFunction:
    """Return a custom step on each replica with its rows, as under Keras, with the means of the logs."""

    def step(batch: Batch) -> Logs:
        strategy = replicas.strategy
        rows = row_count(leaves_of(batch)[0])
        require_rows(named_leaves(batch), rows, "a tensor of the batch")
        shares = shares_by_keras(rows, replicas.count)
        parts = [rows_between(batch, begin, begin + size) for begin, size in shares]
        logs = strategy.run(_as_it_is(lambda: function(parts[_replica_number()])))
        if not isinstance(logs, dict):
            return logs
        return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}

    return step


def _stock_step(model: keras.Model, replicas: Replicas, most_rows: int | None) -> StepFunction:
    """Return Keras's own `train_step` on a batch that replicas share; see the module's text."""

    def step(batch: Batch) -> Logs:
        x = keras.utils.unpack_x_y_sample_weight(batch)[0]
        rows = row_count(leaves_of(x)[0])
        require_rows(named_leaves(batch if replicas.own_rows else x), rows, "an input")
        shares = shares_of(rows, replicas.count)
        logs: list[Logs] = []
        with contextlib.ExitStack() as patches:
            part = whole_batch_dropout(model, patches)
            apart = keras_replicas.keep_apart(model, keras_models.flat_layers(model), patches)
            patches.enter_context(keras_replicas.gradients_already_reduced(model.optimizer))

            def run() -> None:
                number = _replica_number()
                own = replicas.own_rows
                share = _OwnShare(x, replicas, number) if own else Share(x, rows, *shares[number])
                replica = _Replica(model, replicas, share, part, apart, most_rows)
                counts = number == replicas.first
                found = replica.train(batch, counts=counts)
                if counts:
                    logs.append(found)

            replicas.strategy.run(_as_it_is(run))
        return logs[0]

    return step


class _OwnShare(Share):
    """A replica's rows of those that its host brings. Made in the replica's context."""

    def __init__(self, x: Any, replicas: Replicas, number: int) -> None:
        own = shares_of(row_count(leaves_of(x)[0]), len(replicas.devices))
        self._first, size = own[number - replicas.first]
        alone = tf.one_hot(number, replicas.count, dtype=tf.int32) * size
        sizes = tf.distribute.get_replica_context().all_reduce(_SUM, alone)
        super().__init__(x, tf.reduce_sum(sizes), tf.cumsum(sizes, exclusive=True)[number], size)

    def rows_of(self, structure: Any) -> Any:
        """Return this replica's rows of what its host brings; one of zeros where there are none."""

        def rows(leaf: tf.Tensor) -> tf.Tensor:
            count, rest = tf.shape(leaf)[0], tf.shape(leaf)[1:]
            some = tf.cond(count > 0, lambda: leaf, lambda: tf.zeros(tf.concat([[1], rest], 0), leaf.dtype))
            some.set_shape([None, *leaf.shape[1:]])
            begin = tf.minimum(self._first, tf.shape(some)[0] - 1)
            return some[begin : begin + tf.maximum(self.size, 1)]

        return keras.tree.map_structure(lambda leaf: None if leaf is None else rows(leaf), structure)


@dataclass(frozen=True)
class _Replica:
    """One replica, while its part of the step is traced."""

    model: keras.Model
    replicas: Replicas
    share: Share
    part: Part
    apart: Callable[[list[keras_replicas.AddedLoss], keras_replicas.Counted], contextlib.ExitStack]
    most_rows: int | None

    def train(self, batch: Batch, *, counts: bool) -> Logs:
        """Make this replica's part of a step; the one that `counts` updates the metrics and returns them."""
        model, share = self.model, self.share
        added, counted = list[keras_replicas.AddedLoss](), keras_replicas.Counted()
        with (
            tf.GradientTape() as tape,
            self.part(share.rows, share.start, share.stop, {}),
            self.apart(added, counted),
        ):
            outputs = Outputs(keras_training.forward(model, share.x))
        what = f"an output of the model {model.name!r}"
        with tf.control_dependencies(require_rows(outputs.named, share.stop - share.start, what)):
            tensors = [tf.identity(tensor) for tensor in outputs.tensors]
        layers, terms = [layer for layer, _ in added], [term for _, term in added]
        addends = [term * share.weight(term.dtype) for term in terms]
        addends += [share.counts(variable.value - before) for variable, before in counted.values()]
        whole, total = self._gathered(tensors, addends)
        for (variable, before), more in zip(counted.values(), total[len(terms) :], strict=True):
            variable.assign(before + tf.cast(more, before.dtype))
        if self.replicas.own_rows:
            batch = self._gathered_batch(batch)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)

        y_pred, by_output, by_term, direct = self._loss_gradients(
            batch, outputs, whole, list(zip(layers, total, strict=False)), counts=counts
        )
        weights = list(model.trainable_weights)
        if weights:
            seeds = [None if g is None else share.seed(g) for g in by_output]
            seeds += [None if g is None else g * share.weight(g.dtype) for g in by_term]
            pairs = [p for p in zip([*outputs.tensors, *terms], seeds, strict=True) if p[1] is not None]
            leaves, seeds = [leaf for leaf, _ in pairs], [seed for _, seed in pairs]
            own = tape.gradient(leaves, weights, output_gradients=seeds)
            shared = [add_shared(pair, self.replicas.count) for pair in zip(own, direct, strict=True)]
            self._apply(shared, weights)
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)) if counts else {}

    def _gathered(self, outputs: Sequence[tf.Tensor], terms: Sequence[tf.Tensor]) -> tuple[Any, Any]:
        """Return the rows of all replicas for each output, and the sum over the replicas of each term."""
        rows, several_hosts = self.share.rows, self.replicas.hosts.count > 1

        def gather(strategy: tf.distribute.Strategy, rows: Any, terms: Any) -> tuple[Any, Any]:
            local = strategy.experimental_local_results
            return [tf.concat(local(p), axis=0) for p in rows], [tf.add_n(local(p)) for p in terms]

        if several_hosts:
            # They share no memory: a sum, with zeros for the rows of the others. A collective operation must
            # have the same shape in each step of a call; a smaller batch is padded.
            most = rows if self.most_rows is None else self.most_rows
            sent = [self.share.padded(tf.cast(t, number_type(t.dtype)), most) for t in outputs]
            summed = self._sum_over_replicas([*sent, *terms])
            whole = [tf.cast(s[:rows], t.dtype) for s, t in zip(summed, outputs, strict=False)]
            sums = summed[len(outputs) :]
        else:
            own = [leaf[: self.share.size] for leaf in outputs]
            whole, sums = tf.distribute.get_replica_context().merge_call(gather, args=(own, list(terms)))
        for tensor, leaf in zip(whole, outputs, strict=True):
            tensor.set_shape([rows if isinstance(rows, int) else None, *leaf.shape[1:]])
        return whole, sums

    def _gathered_batch(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return what the loss and the metrics read of the batches of all hosts, None for the rest."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        methods = (self.model.compute_loss, self.model.compute_metrics)
        read = (None if all(map(keras_models.is_stock_method, methods)) else x, y, sample_weight)
        own = self.share.rows_of(read)
        rest = iter(self._gathered(leaves_of(own), [])[0])
        whole: Any = keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), own)
        return whole

    def _sum_over_replicas(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum each tensor over the replicas; sparse ones stay sparse, in the order of the rows."""
        if self.replicas.hosts.count > 1:
            return self._all_reduced(tensors)
        # Where replicas share memory, sparse ones go through it: a collective has one shape within a call.
        # So does all else between CPUs, where strategies of one process mistake each other's collectives.
        on_cpus = all("CPU" in device for device in self.replicas.devices)
        shared = [i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices) or on_cpus]
        sent = [i for i in range(len(tensors)) if i not in shared]
        summed = dict(zip(sent, self._all_reduced([tensors[i] for i in sent]), strict=True))
        summed |= zip(shared, _merged([tensors[i] for i in shared]), strict=True)
        return [summed[i] for i in range(len(tensors))]

    def _all_reduced(self, tensors: Sequence[Any]) -> list[Any]:
        def reduce() -> list[Any]:
            context, summed = tf.distribute.get_replica_context(), dict[int, Any]()
            for dtype in dict.fromkeys(t.dtype for t in tensors):  # TensorFlow sends those of a call as one
                places = [i for i, t in enumerate(tensors) if t.dtype == dtype]
                summed |= zip(places, context.all_reduce(_SUM, [tensors[i] for i in places]), strict=True)
            return [summed[i] for i in range(len(tensors))]

        waits = self.replicas.hosts.waits
        if not tensors or waits is None or _replica_number() != self.replicas.first:
            return reduce()
        return waits.around(tensors, reduce)

    def _loss_gradients(
        self,
        batch: Batch,
        outputs: Outputs,
        whole: Sequence[tf.Tensor],
        added: Sequence[keras_replicas.AddedLoss],
        *,
        counts: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Return the whole batch's outputs; the gradients of its loss by outputs, added losses, weights."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        terms = [term for _, term in added]
        with keras_replicas.unscaled_losses(), tf.GradientTape() as tape:
            tape.watch([t for t in (*whole, *terms) if t.dtype.is_floating or t.dtype.is_complex])
            y_pred = outputs.of(whole)
            with keras_replicas.UpdatesApart(model, counts=counts) as updates:
                keras_replicas.place_added_losses(model, added)
                loss = keras_replicas.compute_loss(model, x, y, y_pred, sample_weight)
                keras_replicas.track_loss(model, (x, y_pred), loss)
                scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, (list(whole), terms, list(model.trainable_weights)))
        updates.assign()
        return y_pred, *gradients

    def _apply(self, gradients: Sequence[Any], weights: Sequence[keras.Variable]) -> None:
        summed = iter(self._sum_over_replicas([g for g in gradients if g is not None]))
        reduced = [None if gradient is None else next(summed) for gradient in gradients]
        self.model.optimizer.apply_gradients(zip(reduced, weights, strict=True))


def _merged(tensors: list[Any]) -> list[Any]:
    """Sum each tensor over replicas that share memory."""

    def merge(strategy: tf.distribute.Strategy, tensors: Sequence[Any]) -> list[Any]:
        return [add_gradients(strategy.experimental_local_results(parts)) for parts in tensors]

    context = tf.distribute.get_replica_context()
    return list(context.merge_call(merge, args=(tensors,))) if tensors else []


def _as_it_is(function: Callable[[], Any]) -> Callable[[], Any]:
    """Keep AutoGraph, which `Strategy.run` applies, from rewriting a function."""
    return tf.autograph.experimental.do_not_convert(function)


def _replica_number() -> int:
    """Return which replica this thread traces, counted over all hosts."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))
