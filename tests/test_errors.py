"""The exceptions cross processes and copies whole: nobody who waits for a worker waits for ever."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib.util
import pickle
import sys
import threading
import traceback

import pytest

from overlap_train import errors
from overlap_train._support.reasons import Reason
from tests import interpreters
from tests.docs.pages import DOCS

PAGE = DOCS / "troubleshooting.md"
KINDS = [getattr(errors, name) for name in errors.__all__]


class Subclass(errors.ValidationWorkerError):
    """One that a user may derive."""

    def __init__(self, epoch: int) -> None:
        super().__init__("derived", epoch=epoch, shard=0)
        self.note = {"more": [1, 2]}


def made(kind: type[Exception]) -> Exception:
    """Return an exception with an attribute."""
    where = {"epoch": 3, "shard": 1} if kind is errors.ValidationWorkerError else {}
    error = kind("it failed", **where)
    error.hint = ("look", "there")
    return error


def assert_whole(error: Exception, expected: Exception) -> None:
    assert type(error) is type(expected)
    assert str(error) == str(expected)
    assert error.args == expected.args
    assert vars(error) == vars(expected)


def raise_made(name: str) -> None:
    raise made(getattr(errors, name))


TRANSFERS = {"copy": copy.copy, "deepcopy": copy.deepcopy} | {
    f"pickle {p}": lambda error, p=p: pickle.loads(pickle.dumps(error, p))
    for p in range(pickle.HIGHEST_PROTOCOL + 1)
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_whole_in_a_copy(kind):
    for transfer in TRANSFERS.values():
        error = made(kind)
        moved = transfer(error)
        assert moved is not error
        assert_whole(moved, error)
        assert moved.__traceback__ is None


def test_a_copy_does_not_share_what_can_change():
    error = Subclass(2)
    deep, shallow = copy.deepcopy(error), copy.copy(error)
    error.note["more"].append(3)
    assert deep.note == {"more": [1, 2]}
    assert shallow.note == {"more": [1, 2, 3]}


def test_a_derived_error_with_a_constructor_of_its_own_is_whole():
    assert_whole(pickle.loads(pickle.dumps(Subclass(2))), Subclass(2))


def test_what_cannot_be_pickled_says_what_it_was():
    error = errors.ValidationWorkerError("it failed", epoch=3, shard=1)
    error.lock = threading.Lock()
    moved = pickle.loads(pickle.dumps(error))
    assert (moved.epoch, moved.shard) == (3, 1)
    assert "lock" in moved.lock


def refused() -> Exception:
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.ensure_shape(tf.zeros(2), [3])
    return raised.value


class Mute(Exception):
    """Can neither be pickled nor say anything."""

    def __reduce__(self):
        raise TypeError("stays here")

    def __repr__(self):
        raise RuntimeError("says nothing")

    __str__ = __repr__


def test_what_can_neither_be_pickled_nor_printed_says_its_class():
    error = errors.HostLostError("it failed", Mute())
    error.guilty = Mute()
    sent = pickle.loads(pickle.dumps(error))
    assert sent.guilty == sent.args[1] == "a Mute that cannot be printed"


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
    for moved in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error), error):
        assert type(moved) is type(error)
        assert str(moved) == "it failed"
        assert (moved.args, moved.epoch, moved.shard) == (("it failed",), 3, 1)
    assert getattr(error, "error_code", None) == getattr(cause, "error_code", None)


@pytest.mark.parametrize("cause", [StopIteration(), KeyboardInterrupt(), Sealed()])
def test_an_error_of_a_worker_whose_cause_has_no_class_to_share(cause):
    error = errors.worker_error("it failed", epoch=3, shard=1, cause=cause)
    assert type(error) is errors.ValidationWorkerError
    assert not isinstance(error, type(cause))


def test_an_error_whose_class_another_process_does_not_know():
    class Local(Exception):
        pass

    error = errors.worker_error("it failed", epoch=3, shard=1, cause=Local())
    assert isinstance(error, Local)
    moved = pickle.loads(pickle.dumps(error))
    assert type(moved) is errors.ValidationWorkerError
    assert (str(moved), moved.epoch) == ("it failed", 3)


def test_every_error_leaves_an_executor_of_processes():
    with concurrent.futures.ProcessPoolExecutor(1, interpreters.forkserver()) as executor:
        waited = [(kind, executor.submit(raise_made, kind.__name__)) for kind in KINDS]
        for kind, future in waited:
            error = future.exception(timeout=120)
            assert_whole(error, made(kind))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the package ray (extra 'ray')")
def test_every_error_leaves_a_ray_task():
    import ray

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        task = ray.remote(raise_made)
        for kind in KINDS:
            with pytest.raises(kind) as raised:
                ray.get(task.remote(kind.__name__), timeout=120)
            assert_whole(raised.value.cause, made(kind))
    finally:
        ray.shutdown()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_ends_with_the_place_of_its_paragraph(kind):
    raised = errors.OverlapError([Reason.of("lag-zero")]) if kind is errors.OverlapError else made(kind)
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
    assert Subclass(2).__notes__ == error.__notes__
    assert copy.deepcopy(error).__notes__ == pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__
