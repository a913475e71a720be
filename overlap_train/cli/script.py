"""Running a user's script up to its first `fit`, for the commands that look at that call."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from overlap_train._support.imports import configured_backend, other_backend
from overlap_train._support.printing import error_text
from overlap_train.cli.report import UsageError, one_line

T = TypeVar("T")

_WHERE = "pass the arguments with which it trains after its name"


@dataclass(frozen=True)
class FirstFit:
    """A script's first call of `fit`."""

    trainer: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    by_keras: bool  # the script called `keras.Model.fit` itself, and nothing routes it


def add_script(parser: argparse.ArgumentParser, script: str, example: str) -> None:
    """Declare a script, and that all behind its name is the script's; help ends with an example."""
    parser.add_argument("script", type=Path, help=script)
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    parser.epilog = f"example: {example} Arguments behind the script are the script's."


class _Ends(BaseException):
    """Ends a script where it calls `fit`. No `except Exception` of the script holds it up."""


def first_fit(script: Path, arguments: Sequence[str], look: Callable[[FirstFit], T]) -> T:
    """Run a script as `python script` does up to its first call of `fit`, and return what `look` returns.

    Everything before that call is done: files are read and written, models are built. `look` is called in the
    place of `fit`, while the script's files are still open.
    """
    require_script(script)
    answer: Future[T] = Future()
    with _stopping_at_fit(look, answer), as_main(script, arguments):
        try:
            runpy.run_path(os.path.abspath(script), run_name="__main__")
        except _Ends:
            pass
        except SystemExit as end:
            if not answer.done():
                how = f"said {one_line(end.code)} and ended" if isinstance(end.code, str) else "ended"
                status = "" if isinstance(end.code, str) else f" with status {end.code or 0}"
                raise UsageError(f"{script} {how}{status} before it called fit; {_WHERE}") from end
        except Exception as error:
            if not answer.done():
                reason = one_line(error_text(error))
                raise UsageError(f"{script} raised before it called fit: {reason}") from error
    _require_tensorflow(script)  # which it may have set itself, after keras was imported here
    if not answer.done():
        raise UsageError(f"{script} has not called Trainer.fit or keras.Model.fit; {_WHERE}")
    return answer.result()


def require_script(script: Path) -> None:
    """Raise UsageError if there is no such script, or Keras is to run on another backend than TensorFlow."""
    if not os.path.isfile(script):  # which is False, too, for a name that the system cannot take
        raise UsageError(f"there is no script {script}")
    _require_tensorflow(script)


def _require_tensorflow(script: Path) -> None:
    """Raise UsageError if Keras is to run on another backend than TensorFlow."""
    if configured_backend() != "tensorflow":
        raise UsageError(f"{script}: {other_backend(configured_backend())}")


def as_main(script: Path, arguments: Sequence[str]) -> contextlib.ExitStack:
    """Give a script its own arguments, and the modules in its folder."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    undo = contextlib.ExitStack()

    @undo.callback
    def put_back() -> None:
        sys.argv = argv
        sys.path[:] = path

    return undo


def _stopping_at_fit(look: Callable[[FirstFit], T], answer: Future[T]) -> contextlib.ExitStack:
    """End the script where it calls `fit`, with the answer that `look` gives to the first call."""
    from overlap_train._keras import routes
    from overlap_train.trainer import Trainer

    fit = Trainer.fit

    def stop(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        end(FirstFit(trainer, args, kwargs, by_keras=False))

    def stop_keras(original: Callable[..., Any], model: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "fit":
            return original(model, *args, **kwargs)
        return end(FirstFit(Trainer(model), args, kwargs, by_keras=True))

    def end(reached: FirstFit) -> NoReturn:
        if not answer.done():
            setattr(Trainer, "fit", fit)  # noqa: B010  whose arguments are looked at, and which may train
            with routes.suspended():
                try:
                    answer.set_result(look(reached))
                except Exception as error:  # not raised within the script, which might catch it
                    answer.set_exception(error)
            setattr(Trainer, "fit", stop)  # noqa: B010
        raise _Ends

    setattr(Trainer, "fit", stop)  # noqa: B010  an assignment that mypy does not hold against its signature
    routes.add_handler(stop_keras, everywhere=True)
    undo = contextlib.ExitStack()

    @undo.callback
    def put_back() -> None:
        routes.remove_handler(stop_keras, everywhere=True)
        setattr(Trainer, "fit", fit)  # noqa: B010

    return undo
