"""The exceptions cross processes and copies whole: nobody who waits for a worker waits for ever."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import sys
import traceback

import pytest

from overlap_train import errors
from overlap_train._support.reasons import Reason
from tests import interpreters
from tests.docs.pages import DOCS

PAGE = DOCS / "troubleshooting.md"
KINDS = [getattr(errors, name) for name in errors.__all__]


def made(kind: type[Exception]) -> Exception:
    """Return an exception; all but two take what any exception takes."""
    if kind is errors.OverlapError:
        return errors.OverlapError([Reason.of("lag-zero")])
    return kind("it failed", **({"epoch": 3, "shard": 1} if kind is errors.ValidationWorkerError else {}))


def raise_made(name: str) -> None:
    raise made(getattr(errors, name))


def test_every_error_leaves_an_executor_of_processes():
    with concurrent.futures.ProcessPoolExecutor(1, interpreters.forkserver()) as executor:
        waited = [(kind, executor.submit(raise_made, kind.__name__)) for kind in KINDS]
        for kind, future in waited:
            error, expected = future.exception(timeout=120), made(kind)
            assert (type(error), error.args, vars(error)) == (kind, expected.args, vars(expected))


def refused() -> Exception:
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.ensure_shape(tf.zeros(2), [3])
    return raised.value


class Sealed(Exception):
    def __init_subclass__(cls) -> None:
        raise AttributeError("no classes below")


@pytest.mark.parametrize(
    "make",
    [
        refused,
        lambda: KeyError("gone"),
        lambda: OSError(28, "full"),
        lambda: UnicodeDecodeError("a", b"", 0, 1, ""),
    ],
    ids=["tensorflow", "key", "os", "unicode"],
)
def test_an_error_of_a_worker_is_of_the_class_of_its_cause(make):
    cause = make()
    error = errors.worker_error("it failed", epoch=3, shard=1, cause=cause)
    assert isinstance(error, (errors.ValidationWorkerError))
    assert isinstance(error, type(cause))
    assert type(error) is type(errors.worker_error("again", epoch=0, shard=0, cause=make()))
    error.add_note("of the user's") if sys.version_info >= (3, 11) else None
    for moved in (pickle.loads(pickle.dumps(error)), copy.copy(error), error):
        assert (str(moved), moved.epoch, moved.shard) == ("it failed", 3, 1)
        assert moved.__notes__ == error.__notes__
    assert getattr(error, "error_code", None) == getattr(cause, "error_code", None)


@pytest.mark.parametrize("cause", [StopIteration(), KeyboardInterrupt(), Sealed()])
def test_an_error_of_a_worker_whose_cause_has_no_class_to_share(cause):
    error = errors.worker_error("it failed", epoch=3, shard=1, cause=cause)
    assert type(error) is errors.ValidationWorkerError
    assert not isinstance(error, type(cause))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_ends_with_the_place_of_its_paragraph(kind):
    raised = made(kind)
    place = "\n".join([str(raised), *getattr(raised, "__notes__", ())]).splitlines()[-1]
    identifier = place.removeprefix("  see docs/troubleshooting.md#")
    assert identifier == ("lag-zero" if kind is errors.OverlapError else kind.__name__.lower())
    assert str(raised).count("see docs/") == (kind is errors.OverlapError)
    head = f'<a id="{kind.__name__.lower()}"></a>\n**{kind.__name__}.** '
    _, paragraph = PAGE.read_text().split(head)
    assert "**Remedy:**" in paragraph.partition("<a id=")[0] or kind is errors.OverlapTrainError


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 prints no notes")
def test_python_prints_the_place_as_one_last_line():
    error = errors.worker_error("it failed", epoch=3, shard=1, cause=KeyError("gone"))
    *_, message, place = "".join(traceback.format_exception_only(error)).splitlines()
    assert message == "overlap_train.errors.ValidationWorkerError: it failed"
    assert place == "  see docs/troubleshooting.md#validationworkererror"


def test_an_error_that_is_derived_from_ours_names_the_paragraph_of_ours_once():
    cause = errors.CheckpointError("it failed")
    error = errors.worker_error("it failed", epoch=3, shard=1, cause=cause)
    assert error.__notes__ == ["  see docs/troubleshooting.md#validationworkererror"]
