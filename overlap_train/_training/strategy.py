"""The strategy of a training: found, and refused with a reason before anything starts if it cannot train."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import models as keras_models
from overlap_train._keras import optimizers as keras_optimizers
from overlap_train._keras import replicas as keras_replicas
from overlap_train.options.execution import ExecutionPlan
from overlap_train.parallel.cluster_hosts import OWN_ROWS, EvaluatorTask, make_hosts

_SUPPORTED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


# Settings of an optimizer by which it updates weights in some steps only, and what to use instead.
_WITHIN_CONDITIONS = {
    "gradient_accumulation_steps": "larger batches",
    "ema_overwrite_frequency": "SwapEMAWeights",
}


class Replicas:
    """The replicas of a model under a strategy."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        self.hosts = make_hosts(strategy)
        self.own_rows = self.hosts.count > 1 and getattr(strategy, OWN_ROWS, False)
        self.most_rows: int | None = None  # of a batch of all hosts in the present fit, if that is known
        self.serves = isinstance(strategy, EvaluatorTask)  # the evaluator of a cluster, which trains nothing

    @property
    def first(self) -> int:
        """The number of this host's first replica."""
        return self.hosts.index * len(self.devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this host's replicas, in the order of the replicas."""
        return tuple(self.strategy.extended.worker_devices)

    @property
    def spread(self) -> tuple[str, ...]:
        """The devices over which validation workers are spread; none if there is one only."""
        return self.devices if len(self.devices) > 1 else ()

    def scope(self) -> Any:
        """Return the strategy's scope; a no-op inside it."""
        return self.strategy.scope()

    def check_model(self, model: keras.Model) -> None:
        """Raise ValueError unless the strategy's scope made the model and an optimizer that it can use."""
        name = type(self.strategy).__name__
        if keras_models.strategy_of(model) is not self.strategy or self._foreign(model.variables):
            raise ValueError(
                f"the model {model.name!r} was not made in the scope of the {name}: build and compile it "
                "inside `with strategy.scope():`, all its layers included"
            )
        optimizer = getattr(model, "optimizer", None)  # of a model that is not compiled yet
        if optimizer is None:
            return
        made_by = keras_replicas.optimizer_strategy(keras_optimizers.inner_optimizer(optimizer))
        if made_by is not self.strategy or self._foreign(optimizer.variables):
            raise ValueError(
                f"the optimizer {type(optimizer).__name__} of the model {model.name!r} was not made in the "
                f"scope of the {name}: make it and call model.compile inside `with strategy.scope():`"
            )
        inner = keras_optimizers.inner_optimizer(optimizer)
        for setting, instead in _WITHIN_CONDITIONS.items():
            if getattr(inner, setting, None) and (self.count > 1 or setting == "gradient_accumulation_steps"):
                raise ValueError(
                    f"{setting} does not work under tf.distribute, where no condition may contain an update "
                    f"on several replicas; use {instead} or one device"
                )

    def build(self, model: keras.Model, element_spec: Any) -> None:
        """Make the missing variables of a compiled model, on every replica."""
        with self.scope():
            keras_replicas.symbolic_build(model, element_spec)

    def own_metrics(self, model: keras.Model) -> Any:
        """Return a model's metrics as this host's first replica has counted them."""
        local = self.strategy.experimental_local_results
        values = [(v, local(v.value)[0].read_value()) for v in model.metrics_variables]
        with keras.StatelessScope(state_mapping=values):
            return model.get_metrics_result()

    def in_one_replica(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is traced as on this host's first replica alone, with the losses of one."""

        def run(*arguments: Any) -> Any:
            replica = tf.distribute.ReplicaContext(self.strategy, replica_id_in_sync_group=self.first)
            with replica, keras_replicas.unscaled_losses():
                return function(*arguments)

        return run

    def check_batch(self, batch_size: int | None) -> None:
        """Raise ValueError if a full batch has fewer rows than there are replicas."""
        if batch_size is not None and batch_size < self.count and not self.own_rows:
            raise ValueError(
                f"batch_size is {batch_size}, and {self.count} replicas are to share each batch; pass a "
                f"batch_size of at least {self.count}: it is that of all replicas together"
            )

    def _foreign(self, variables: Any) -> bool:
        """Whether any variable was made outside the strategy's scope."""
        created_in_scope = self.strategy.extended.variable_created_in_scope
        return not all(created_in_scope(v.value) for v in variables if isinstance(v, keras.Variable))


def shares_of(rows: Any, count: int) -> list[tuple[Any, Any]]:
    """Return the first row and the number of rows, an int or int32[], of each of `count` replicas."""
    return _between([-(-rows * r // count) for r in range(count + 1)])


def shares_by_keras(rows: Any, count: int) -> list[tuple[Any, Any]]:
    """Return the same as Keras divides a batch: as many rows for each as there are until none are left."""
    most, least = -(-rows // count), min if isinstance(rows, int) else tf.minimum
    return _between([least(r * most, rows) for r in range(count + 1)])


def _between(bounds: list[Any]) -> list[tuple[Any, Any]]:
    return [(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


def find_strategy(model: keras.Model, strategy: Any) -> Replicas | None:
    """Return the replicas of `strategy`, or of the scope that made a model, or None; refuse others."""
    if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(f"strategy must be a tf.distribute.Strategy or None; got {type(strategy).__name__}")
    present = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    strategy = strategy or keras_models.strategy_of(model) or present
    if strategy is None:
        return None
    if not isinstance(strategy, _SUPPORTED):
        raise ValueError(
            f"{type(strategy).__name__} is not supported; pass a tf.distribute.MirroredStrategy, "
            "MultiWorkerMirroredStrategy or OneDeviceStrategy"
        )
    if present is not None and present is not strategy:
        raise ValueError(
            f"the model is to be trained under a {type(strategy).__name__}, and this is the scope of another "
            f"strategy, a {type(present).__name__}; call the trainer outside it"
        )
    replicas = Replicas(strategy)
    replicas.check_model(model)
    return replicas


def refuse_for_replicas(plan: ExecutionPlan, *, jit_compile: bool | str) -> None:
    """Raise ValueError for a plan, or a model, that asks for what several replicas cannot do."""
    if plan.kernels == "fast":
        raise ValueError(
            "kernels='fast' is not possible under a tf.distribute strategy of several replicas; "
            "call overlap_train.accelerate(model) instead"
        )
    option = "batch_splits" if plan.splits else "jit=True" if plan.jit is True else ""
    if not option and jit_compile:
        option = "model.compile(jit_compile=True)"
    if option:
        raise ValueError(
            f"{option} is not possible under a tf.distribute strategy of several replicas, which "
            "share each batch already and which XLA cannot compile as one; leave it out"
        )
