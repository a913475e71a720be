"""Running a user's script up to its first `fit`, whose arguments are taken and which does not train."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from overlap_train.cli.report import UsageError, one_line

__all__ = ["FirstFit", "first_fit"]


class FirstFit(BaseException):
    """Ends a script where it calls `fit`. No `except Exception` of the script holds it up.

    Attributes:
        trainer: whose `fit` was called, or what would train in its place.
        given: positional arguments of the call.
        kwargs: named arguments of the call.
        by_keras: whether the script called `keras.Model.fit` itself, and nothing routes it.
    """

    def __init__(self, trainer: Any, args: Sequence[Any], kwargs: dict[str, Any], *, by_keras: bool) -> None:
        super().__init__()
        self.trainer = trainer
        self.given = tuple(args)
        self.kwargs = kwargs
        self.by_keras = by_keras


def first_fit(script: Path, arguments: Sequence[str]) -> FirstFit:
    """Run a script as `python script` does, and return its first call of `fit`.

    Everything before that call is done: files are read and written, models are built.

    Args:
        script: its path.
        arguments: those of the script.

    Raises:
        UsageError: there is no such script, it raises, or it ends without a `fit`.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    with _stopping_at_fit(), _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except FirstFit as reached:
            return reached
        except SystemExit as end:
            raise UsageError(f"{script} ended with status {end.code} before it called fit") from end
        except Exception as error:
            told = one_line(f"{type(error).__name__}: {error}")
            raise UsageError(f"{script} raised before it called fit: {told}") from error
    raise UsageError(f"{script} has not called Trainer.fit or keras.Model.fit")


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give a script its own arguments, and the modules beside it."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path


@contextlib.contextmanager
def _stopping_at_fit() -> Iterator[None]:
    from overlap_train._keras import routes
    from overlap_train.trainer import Trainer

    def stop(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        raise FirstFit(trainer, args, kwargs, by_keras=False)

    def stop_keras(original: Callable[..., Any], model: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "fit":
            return original(model, *args, **kwargs)
        raise FirstFit(Trainer(model), args, kwargs, by_keras=True)

    fit = Trainer.fit
    setattr(Trainer, "fit", stop)  # noqa: B010  an assignment that mypy does not hold against its signature
    routes.add_handler(stop_keras, everywhere=True)
    try:
        yield
    finally:
        routes.remove_handler(stop_keras, everywhere=True)
        setattr(Trainer, "fit", fit)  # noqa: B010
