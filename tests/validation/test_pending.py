"""A pending epoch waits within bounds and says which part of which epoch failed, and why."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import tensorflow as tf

from overlap_train._snapshot import Snapshot, Values
from overlap_train._validation.evaluation import ShardResult
from overlap_train._validation.pending import PendingEpoch, PendingValidation
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from overlap_train.records import ShardOutcome, Span

NOTHING = Values((), (), (), ())


def outcome(index):
    return ShardOutcome(ShardResult((), {}, 1), Span("validate", "w", 0.0, 1.0, 4, 9, {"shard": index}))


def pending(parts):
    futures = [Future() for _ in range(parts)]
    validation = PendingValidation(4, "", futures)
    return PendingEpoch(Snapshot(4, 9, NOTHING), {}, [validation] if parts else []), futures


def test_an_epoch_without_validation_is_ready_at_once():
    epoch, _ = pending(0)
    assert epoch.ready()
    epoch.wait(1e-9, lambda: pytest.fail("there is nothing to wait for"))


def test_results_come_in_the_order_of_the_parts_however_they_finish():
    epoch, futures = pending(3)
    outcomes = [outcome(i) for i in range(3)]
    for index in (2, 0, 1):
        assert not epoch.ready()
        futures[index].set_result(outcomes[index])
    assert epoch.ready()
    assert epoch.validations[0].done == 3
    assert epoch.validations[0].outcomes() == outcomes


def test_one_failure_ends_the_wait_for_the_others():
    epoch, futures = pending(3)
    futures[1].set_exception(KeyError("gone"))
    assert epoch.ready()
    with pytest.raises(ValidationWorkerError, match=r"epoch 5 .*part 2 of 3: KeyError: 'gone'") as info:
        epoch.validations[0].outcomes()
    assert isinstance(info.value.__cause__, KeyError)
    assert (info.value.epoch, info.value.shard) == (4, 1)


def test_a_wait_that_is_too_long_says_how_far_it_came_and_what_to_do():
    epoch, futures = pending(2)
    futures[0].set_result(outcome(0))
    with pytest.raises(ValidationTimeoutError, match=r"epoch 5 .*timeout_s=0.001.*1 of 2 .*raise Validation"):
        epoch.wait(0.001, lambda: None)


def with_functions(*names):
    """Returns an epoch that waits for functions, and their futures by name."""
    futures = {name: Future() for name in names}
    validations = [PendingValidation(4, name, [futures[name]], is_function=True) for name in names]
    return PendingEpoch(Snapshot(4, 9, NOTHING), {}, validations), futures


def test_a_function_that_does_not_return_is_named():
    epoch, futures = with_functions("bleu", "length")
    with pytest.raises(ValidationTimeoutError, match="of evaluation function 'bleu' and 'length'"):
        epoch.wait(0.001, lambda: None)
    futures["bleu"].set_result(outcome(0))
    with pytest.raises(ValidationTimeoutError, match="no value yet of evaluation function 'length'; look"):
        epoch.wait(0.001, lambda: None)


def test_data_and_a_function_that_are_both_late_are_told():
    epoch, _ = with_functions("bleu")
    epoch.validations = [*epoch.validations, PendingValidation(4, "", [Future()])]
    told = r"2 of 2 parts were not done, that of evaluation function 'bleu' among them; check whether"
    with pytest.raises(ValidationTimeoutError, match=told):
        epoch.wait(0.001, lambda: None)


def test_the_check_may_end_the_wait():
    epoch, futures = pending(1)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        epoch.wait(None, interrupt)
    epoch.wait_ended = futures[0].set_result(outcome(0))
    epoch.wait(None, interrupt)


def test_cancel_drops_only_what_has_not_begun():
    epoch, futures = pending(2)
    futures[0].set_running_or_notify_cancel()
    epoch.cancel()
    assert not futures[0].cancelled()
    assert futures[1].cancelled()


class Mute(ValueError):
    """One that cannot say what it is, as those of some libraries outside of their context."""

    def __repr__(self):
        raise RuntimeError("no text")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (Mute(), "Mute: it cannot be printed"),
        (ValueError(), "ValueError: (no message)"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 300),
        (
            tf.errors.UnknownError(
                None,
                None,
                "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
                "<stack traces unavailable>\nOSError: disk gone\nTraceback (most recent call last):\n",
            ),
            "UnknownError: OSError: disk gone",
        ),
        (
            tf.errors.InvalidArgumentError(
                None, None, "{{function_node __wrapped__X}} bad row\n\t [[{{node Y}}]]"
            ),
            "InvalidArgumentError: bad row",
        ),
        (
            tf.errors.UnknownError(
                None,
                None,
                "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
                "<stack traces unavailable>\n2 root error(s) found.\n  (0) UNKNOWN:  OSError: disk gone\n"
                "Traceback (most recent call last):\n\n\t [[{{node PyFunc}}]]\n\t [[while/body/_5/_17]]\n"
                "  (1) UNKNOWN:  OSError: disk gone\n0 successful operations.\n0 derived errors ignored.",
            ),
            "UnknownError: OSError: disk gone",
        ),
        (
            tf.errors.InvalidArgumentError(
                None,
                None,
                "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  {{function_node f}} bad row\n\t [[x]]",
            ),
            "InvalidArgumentError: bad row",
        ),
        (
            tf.errors.CancelledError(None, None, "Graph execution error:"),
            "CancelledError: Graph execution error:",
        ),
    ],
)
def test_the_message_shows_the_cause_and_not_the_preamble_of_tensorflow(error, shown):
    epoch, futures = pending(1)
    futures[0].set_exception(error)
    with pytest.raises(ValidationWorkerError) as info:
        epoch.validations[0].outcomes()
    assert str(info.value) == f"validating epoch 5 failed in part 1 of 1: {shown}"
