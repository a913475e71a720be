"""What waits is batched in the order of urgency, and results come back to whom they belong."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from overlap_train.scheduling.service import (
    Limits,
    Model,
    Submission,
    Waiting,
    join_inputs,
    split_outputs,
)


def test_the_last_batches_leave_work_for_every_core():
    waiting = Waiting(aging_s=1.0, lanes=2)
    model = Model("m", None, None, None, max_batch=4)
    waiting.models["m"] = model
    x = np.zeros((1, 2), "float32")
    model.waiting = [Submission(model, (x,), 1, Future(), float(i)) for i in range(12)]
    sizes = []
    while batch := waiting.next_batch():
        sizes.append(len(batch))
        assert [s.arrival_s for s in batch] == sorted(s.arrival_s for s in batch)
    assert sizes == [4, 4, 2, 1, 1]


def model_of(name="m", **options):
    return Model(name, None, None, None, **options)


def submission(model, arrival_s=0.0, *, rows=1, width=2, **options):
    x = np.full((rows, width), arrival_s, "float32")
    made = Submission(model, (x,), rows, Future(), arrival_s, **options)
    model.waiting.append(made)
    return made


def waiting_of(*models, aging_s=1.0, lanes=1):
    waiting = Waiting(aging_s, lanes)
    waiting.models = {model.name: model for model in models}
    return waiting


def test_nothing_that_waits_is_no_batch():
    waiting = waiting_of(model_of())
    assert (len(waiting), waiting.next_batch()) == (0, [])


def test_the_most_urgent_of_all_models_goes_first():
    a, b = model_of("a"), model_of("b")
    late = submission(a, 5.0)
    urgent = submission(b, 6.0, priority=2)
    soon = submission(a, 9.0, deadline_s=3.0)
    waiting = waiting_of(a, b)
    assert len(waiting) == 3
    assert [waiting.next_batch() for _ in range(3)] == [[soon], [urgent], [late]]


@pytest.mark.parametrize(
    ("aging_s", "priority", "deadline_s", "expected"),
    [(1.0, 0, None, 5.0), (2.0, 3, None, -1.0), (2.0, 0, 4.0, 2.0), (2.0, 3, 9.0, -1.0)],
)
def test_urgency_is_when_it_would_have_to_have_come(aging_s, priority, deadline_s, expected):
    made = submission(model_of(), 5.0, priority=priority, deadline_s=deadline_s)
    assert made.urgency_s(aging_s) == expected


def test_a_batch_holds_no_more_examples_than_it_may_and_only_those_of_one_shape():
    model = model_of(max_batch=5)
    first, second, wide, big, last = (
        submission(model, 0.0, rows=2),
        submission(model, 1.0, rows=2),
        submission(model, 2.0, width=3),
        submission(model, 3.0, rows=4),
        submission(model, 4.0),
    )
    waiting = waiting_of(model)
    assert waiting.next_batch() == [first, second, last]
    assert model.waiting == [wide, big]
    assert [waiting.next_batch() for _ in range(2)] == [[wide], [big]]


def test_one_that_is_larger_than_a_batch_runs_alone():
    model = model_of(max_batch=2)
    big = submission(model, 0.0, rows=7)
    submission(model, 1.0)
    assert waiting_of(model).next_batch() == [big]


def test_rows_are_joined_and_come_back_apart():
    model = model_of()
    batch = [submission(model, float(n), rows=n) for n in (1, 3, 2)]
    (joined,) = join_inputs(batch)
    assert joined[:, 0].tolist() == [1.0, 3.0, 3.0, 3.0, 2.0, 2.0]
    parts = split_outputs(batch, (joined * 10, joined[:, :1]))
    assert [[part.shape for part in each] for each in parts] == [
        [(1, 2), (1, 1)],
        [(3, 2), (3, 1)],
        [(2, 2), (2, 1)],
    ]
    assert parts[1][0].tolist() == [[30.0, 30.0]] * 3


def test_one_alone_is_neither_copied_nor_cut():
    batch = [submission(model_of(), 1.0, rows=3)]
    assert join_inputs(batch) is batch[0].inputs
    outputs = (np.zeros(3),)
    assert split_outputs(batch, outputs) == [outputs]


def test_what_waits_is_taken_out_once():
    model = model_of()
    left = submission(model)
    assert model.take_waiting() == [left]
    assert model.take_waiting() == []


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("max_active", 0, ValueError),
        ("max_batch", 0, ValueError),
        ("max_pending", 1.5, TypeError),
        ("aging_s", -1, ValueError),
        ("aging_s", "long", TypeError),
    ],
)
def test_limits_that_cannot_be_meant_are_refused_by_name(name, value, error):
    limits = dict(max_active=None, max_batch=1, max_pending=1, aging_s=0)
    assert Limits(**limits).aging_s == 0.0
    with pytest.raises(error, match=f"{name} must be"):
        Limits(**{**limits, name: value})
