"""Models that are traced once, and fitted from their first state again and again.

Tracing is most of what a small fit costs. `pooled(build)` stands for a function that makes models, where it
is not the first fit of one that is tested: what a pool gives was fitted by other tests, perhaps, and has the
values of a new model. What was not put back as it was makes a comparison fail.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import keras

from overlap_train._inspection.traces import Traces
from tests import networks
from tests.seeds import kernels_are_kept

Build = Callable[..., keras.Model]


class _Kept:
    """A model, and the values that its variables had before its first step."""

    def __init__(self, model: keras.Model) -> None:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._model = model
        self._variables = [*model.variables, *model.optimizer.variables]
        self._values = [keras.ops.convert_to_numpy(variable).copy() for variable in self._variables]
        self._compiled = self._what_is_compiled()

    def restore(self) -> keras.Model | None:
        """Returns the model as it was, or None if a test has made another of it."""
        if self._what_is_compiled() != self._compiled:
            return None
        with self._model.distribute_strategy.scope():
            for variable, value in zip(self._variables, self._values, strict=True):
                variable.assign(value)
        self._model.reset_metrics()
        self._model.stop_training = False
        self._model._initial_epoch = None  # Keras leaves what BackupAndRestore has set
        return self._model

    def _what_is_compiled(self) -> tuple[object, ...]:
        model = self._model
        made_by_steps = {id(variable) for variable in model.metrics_variables}
        variables = {id(variable) for variable in (*model.variables, *model.optimizer.variables)}
        return (
            variables - made_by_steps,
            *(id(part) for part in (model.optimizer, model.loss, model._compile_loss)),
            *(name for name in vars(model) if callable(getattr(keras.Model, name, None))),
            *(layer.trainable for layer in model._flatten_layers()),
            model.run_eagerly,
            model.jit_compile,
            model.steps_per_execution,
            model.test_function is not None and "traced_by_keras" in Traces.of(model, "test"),
        )


class _Pool:
    """The models that one function makes, of which a test gets each once."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._models: list[_Kept] = []
        self.given = 0
        self.lock = threading.Lock()

    def give(self) -> keras.Model:
        self.given += 1
        if self.given > len(self._models):
            model = self._build()
            self._models.append(_Kept(model))
            return model
        with kernels_are_kept():
            new = self._build()  # which draws from all generators what any other would
        model = self._models[self.given - 1].restore()
        if model is None:
            self._models[self.given - 1], model = _Kept(new), new
        return model


_POOLS: dict[object, _Pool] = {}


def pooled(build: Build) -> Build:
    """Returns a function that gives a model as `build` makes it, with known shapes, for the rest of a test.

    Objects as arguments, which two models would share, and named ones make a new model each time.
    """

    @functools.wraps(build)
    def give(*arguments: object, **options: object) -> keras.Model:
        if options or not all(isinstance(argument, str | int | float) for argument in arguments):
            return build(*arguments, **options)
        key = (build, arguments)
        pool = _POOLS.setdefault(key, _Pool(functools.partial(build, *arguments)))
        with pool.lock:
            return pool.give()

    return give


def take_back() -> None:
    """Says that a test has ended, which needs its models no more."""
    for pool in _POOLS.values():
        pool.given = 0


sequential = pooled(networks.sequential)
functional = pooled(networks.functional)
