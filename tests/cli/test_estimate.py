"""`overlap-train estimate` of a script: a few of its steps are made, and the rest is reckoned."""

from __future__ import annotations

import pytest

from overlap_train.cli import estimate as module
from overlap_train.records import Explanation
from tests.cli.conftest import findings


def test_an_estimate_has_its_units(told):
    status, report = told(
        "estimate", "overlap_train.Trainer(model).fit(x, x[:, :1], 2, validation_split=0.5)"
    )
    memory, time = findings(report, "memory"), findings(report, "time")
    assert status == 0
    assert memory["snapshots_bytes"]["value"] == 2 * memory["snapshot_bytes"]["value"] > 0
    assert memory["data_bytes"]["value"] == 4 * (2 + 1) * 4  # rows, columns, bytes of a float32
    assert time["step_s"]["value"] > 0
    assert time["first_epoch_s"]["value"] > 0


def test_no_evaluation_function_is_waited_for(told):
    body = """
def never(model):
    raise AssertionError("nothing is validated")
policy = overlap_train.ValidationPolicy(functions={"never": never})
overlap_train.Trainer(model, validation=policy).fit(x, x[:, :1], 2)
"""
    status, report = told("estimate", body)
    assert status == 0
    assert findings(report, "time")["first_epoch_s"]["value"] > 0


def test_steps_are_made_while_the_script_holds_its_files_open(told):
    body = """
import contextlib
class Rows(keras.utils.PyDataset):
    opened = False
    def __len__(self): return 2
    def __getitem__(self, index):
        assert self.opened
        return x[:4], x[:4, :1]
@contextlib.contextmanager
def opened():
    Rows.opened = True
    yield Rows()
    Rows.opened = False
with opened() as rows:
    model.fit(rows)
"""
    status, report = told("estimate", body)
    assert status == 0, report
    assert findings(report, "time")["step_s"]["value"] > 0


def explanation(steps, **options):
    given = dict(
        validates=True,
        max_lag=1,
        in_step=None,
        plan="plan",
        steps_per_epoch=steps,
        workers=1,
        snapshot_bytes=1000,
        data_bytes=2_000_000,
        tracing_s=0.5,
    )
    return Explanation(**{**given, **options})


@pytest.mark.parametrize(
    ("options", "held"),
    [({}, 2), ({"max_lag": 3}, 4), ({"max_lag": 0, "in_step": "it draws"}, 1), ({"validates": False}, 1)],
)
def test_memory_counts_the_snapshots_that_may_wait(options, held):
    one, all_of_them, data = module._memory(explanation(9, **options))
    assert (one.value, all_of_them.value, data.value) == (1000, held * 1000, 2_000_000)
    assert all_of_them.text.endswith(f"for at most {held} of them")
    assert data.text == "1.91 MiB of training data held as tensors"


@pytest.fixture
def measured(monkeypatch):
    """Returns the numbers of steps that were made; the first ones are slower."""
    made = []

    def measure(reached, steps):
        made.append(steps)
        return 3.0 if len(made) == 1 else 1.0, steps * 0.25

    monkeypatch.setattr(module, "_measured", measure)
    return made


@pytest.mark.parametrize(("steps", "made", "epoch_s"), [(100, 8, 3.0 + 92 * 0.25), (5, 5, 3.0)])
def test_an_epoch_takes_what_its_first_steps_and_the_others_take(measured, steps, made, epoch_s):
    tracing, step, epoch = module._time(None, explanation(steps))
    assert measured == [made, made]
    assert (tracing.value, step.value, epoch.value) == (0.5, 0.25, epoch_s)
    assert step.text == f"250.00 ms a step, measured over {made}"


def test_where_only_the_data_knows_its_steps_the_epoch_is_unknown(measured):
    *_, epoch = module._time(None, explanation(None))
    assert (epoch.value, measured) == (None, [8, 8])
    assert "unknown" in epoch.text
