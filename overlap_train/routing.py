"""`routed()` and `install()`: whatever calls `keras.Model.fit` or `evaluate` trains with `Trainer`."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from overlap_train._keras import routes
from overlap_train._support.arguments import require_flag, require_instance
from overlap_train._support.fit_arguments import is_refusal_of
from overlap_train._support.imports import public_names, require_tensorflow
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.validation import ValidationPolicy
from overlap_train.trainer import Trainer

__all__ = ["Routing", "install", "routed", "uninstall"]

__dir__ = public_names(__name__)


class Routing:
    """Hold the options and the last trainer of routed calls. Any thread may use it.

    Attributes:
        validation: how validations run, as for `Trainer`.
        execution: how steps are executed, as for `Trainer`.
        trainer: the trainer of the last routed `fit`, or of the last `evaluate` if there was no `fit`. Its
            `messages` and `accounts` tell what happened. None before the first call.
    """

    def __init__(
        self,
        validation: ValidationPolicy | None = None,
        execution: ExecutionPlan | None = None,
        resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
    ) -> None:
        """Take the arguments of `routed`.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `resume` is not a possible path.
            RuntimeError: Keras runs on another backend than TensorFlow.
        """
        require_tensorflow()
        require_instance("validation", validation, ValidationPolicy)
        require_instance("execution", execution, ExecutionPlan)
        self.validation = validation
        self.execution = execution
        self.trainer: Trainer | None = None
        self._resume = None if resume is None else checkpoint_policy(resume)
        self._begun = False
        self._lock = threading.Lock()

    def __call__(
        self, original: Callable[..., Any], model: keras.Model, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Do by `Trainer` what a call of a model's method asks for; see `routes.Handler`."""
        if not _takes(name, args, kwargs):
            return original(model, *args, **kwargs)  # which raises Keras's error
        before, trainer = (self.trainer, self._begun), None
        try:
            trainer = Trainer(model, validation=self.validation, execution=self.execution)
            # After a training, a mere score does not replace its trainer.
            if name == "fit" or self.trainer is None or self.trainer.ended is None:
                self.trainer = trainer
            if name == "evaluate":
                return trainer.evaluate(*args, **kwargs)
            return trainer.fit(*args, **kwargs, resume=self._take_resume())
        except (TypeError, ValueError) as error:
            if trainer is not None and not is_refusal_of(trainer, error):
                raise
            refusal = error
        self.trainer = before[0]
        if name == "fit":
            with self._lock:
                self._begun = before[1]
        if name == "fit" and self._beyond_keras():
            raise refusal
        warnings.warn(f"keras.Model.{name} is not routed: {refusal}", RuntimeWarning, stacklevel=4)
        return original(model, *args, **kwargs)

    def require_fit(self) -> None:
        """Make sure, at a block's end, that none of its options has been ignored.

        Raises:
            ValueError: no call of `fit` came here, and an option is beyond Keras.
        """
        extras = self._beyond_keras()
        if extras and not self._begun:
            raise ValueError(
                f"no call of keras.Model.fit came through routed(...), so that {' and '.join(extras)} had no "
                "effect; a model whose own fit trains by itself has to call super().fit(...)"
            )

    def _beyond_keras(self) -> list[str]:
        """Return which options of this routing Keras does not have."""
        policy = self.validation if self.validation is not None else ValidationPolicy()
        extras = {
            "resume": self._resume,
            "functions": policy.functions,
            "validations inside epochs": policy.every_steps,
        }
        return [name for name, value in extras.items() if value]

    def _take_resume(self) -> CheckpointPolicy | None:
        """Return where checkpoints go, once.

        Raises:
            ValueError: a training has taken it already; this one would be taken for its continuation.
        """
        with self._lock:
            if self._resume is not None and self._begun:
                raise ValueError(
                    "routed(resume=...) is for one call of fit, and this is another one; open a block for "
                    "each, with a directory of its own"
                )
            self._begun = True
        return self._resume


class _Block(contextlib.ContextDecorator, contextlib.AbstractContextManager[Routing]):
    """Routes while it runs; as a decorator, while each call of the function does."""

    def __init__(self, make: Callable[[], Routing], *, everywhere: bool) -> None:
        self._make = make
        self._routing = make()
        self._everywhere = everywhere

    def _recreate_cm(self) -> _Block:
        return _Block(self._make, everywhere=self._everywhere)

    def __enter__(self) -> Routing:
        routes.add_handler(self._routing, everywhere=self._everywhere)
        return self._routing

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        routes.remove_handler(self._routing, everywhere=self._everywhere)
        if kind is None:
            self._routing.require_fit()


def routed(
    *,
    validation: ValidationPolicy | None = None,
    execution: ExecutionPlan | None = None,
    resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
    all_threads: bool = False,
) -> contextlib.AbstractContextManager[Routing]:
    """Send `keras.Model.fit` and `evaluate` of all models through `Trainer` while the block runs.

    Use it for libraries that call `fit`, such as tuners and wrappers. Blocks may be nested; the innermost one
    counts. After the last block the methods are Keras's own again.

    Args:
        validation: how validations run; see `ValidationPolicy`.
        execution: how steps are executed; see `ExecutionPlan`.
        resume: a directory or a `CheckpointPolicy`, as for `Trainer.fit`. Then the block may call `fit` only
            once.
        all_threads: whether calls on all threads are routed, and not only those on this thread.

    Returns:
        Gives the block the `Routing`, whose `trainer` is that of the last routed `fit`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a value is out of range; or, at the end of the block, `resume`, evaluation functions or
            validations inside epochs were asked for, and no call of `fit` came through.
        RuntimeError: Keras runs on another backend than TensorFlow.
    """
    everywhere = require_flag("all_threads", all_threads)
    return _Block(lambda: Routing(validation, execution, resume), everywhere=everywhere)


_installed: list[Routing] = []
_install_lock = threading.Lock()


def install(*, validation: ValidationPolicy | None = None, execution: ExecutionPlan | None = None) -> Routing:
    """Send `keras.Model.fit` and `evaluate` through `Trainer`, on all threads, until `uninstall`.

    A further call replaces the arguments. Inside a block of `routed`, that block counts.

    Args:
        validation: how validations run; see `ValidationPolicy`.
        execution: how steps are executed; see `ExecutionPlan`.

    Returns:
        The `Routing`, whose `trainer` is that of the last routed `fit`.

    Raises:
        TypeError: for an argument of the wrong type.
        RuntimeError: Keras runs on another backend than TensorFlow.
    """
    routing = Routing(validation, execution)
    with _install_lock:
        routes.add_handler(routing, everywhere=True)
        _remove_installed()
        _installed.append(routing)
    return routing


def uninstall() -> None:
    """Undo `install`. May be called repeatedly, on any thread."""
    with _install_lock:
        _remove_installed()


def _remove_installed() -> None:
    while _installed:
        routes.remove_handler(_installed.pop(), everywhere=True)


def _takes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a method of Keras's has such arguments."""
    try:
        inspect.signature(getattr(Trainer, name)).bind(None, *args, **kwargs)
    except TypeError:
        return False
    return "resume" not in kwargs
