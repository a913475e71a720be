"""A pytest plugin: every fit goes in calls of one step, with each epoch validated beside the next.

    scripts/test.sh -p tests.stress tests/whole_fits

Then whatever a test compares with Keras is compared at every boundary of a call, and while a validation runs
beside the training. What a test chooses itself stays, and tests marked `default_options` are skipped.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)  # after the root conftest has said how TensorFlow is to begin
def pytest_sessionstart() -> None:
    """Changes the defaults of the plan and the policy."""
    from overlap_train import ExecutionPlan, ValidationPolicy

    set_default(ExecutionPlan, "steps_per_call", 1)
    set_default(ValidationPolicy, "overlap", "always")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is about the defaults."""
    for item in items:
        if item.get_closest_marker("default_options") is not None:
            item.add_marker(pytest.mark.skip("is about the default options"))


def set_default(options: type, name: str, value: Any) -> None:
    begin = options.__init__
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def with_another_default(self: Any, *given: Any, **named: Any) -> None:
        if name not in signature.bind_partial(self, *given, **named).arguments:
            named[name] = value
        begin(self, *given, **named)

    options.__init__ = with_another_default
