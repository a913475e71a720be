"""The first validation is traced again only if a hook before its first batch has set what its trace holds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from overlap_train._fit.first_hooks import FirstValidation


class Found:
    """What Python's values are found to be."""

    def __init__(self, changed):
        self._changed, self.forgotten, self.validated = changed, 0, False

    def changed(self):
        return self._changed

    def forget_validation(self):
        self.forgotten += 1


class Scene:
    def __init__(self, changed):
        self.found, self.said, self.closed, self.evaluated = Found(changed), [], [], []

        def build(resources):
            resources.callback(self.closed.append, True)
            suite = SimpleNamespace(evaluate=self._evaluate)
            return SimpleNamespace(read=lambda: "values"), suite

        self.first = FirstValidation(self.found, build, self.said.append)

    def _evaluate(self, name, values, most):
        assert not self.closed
        self.evaluated.append((name, values, most))
        return "result"


def test_what_was_set_is_said_and_validated_with_a_new_trace():
    scene = Scene("Scaled.scale")
    assert scene.first("val", 2) == "result"
    assert scene.said == ["Scaled.scale was set before the first validation, which is traced again"]
    assert scene.evaluated == [("val", "values", 2)]
    assert (scene.found.forgotten, scene.closed) == (1, [True])


@pytest.mark.parametrize("changed", [None, "Scaled.scale"])
def test_it_is_asked_once(changed):
    scene = Scene(changed)
    scene.first("val")
    made = len(scene.evaluated)
    assert scene.first("val") is None
    assert len(scene.evaluated) == made == (changed is not None)


def test_where_nothing_was_set_the_trace_will_do():
    scene = Scene(None)
    assert scene.first("val") is None
    assert (scene.said, scene.found.forgotten) == ([], 0)


def test_where_keras_would_have_traced_before_too_nothing_is_looked_at():
    first = FirstValidation(None, lambda resources: pytest.fail("it was built"), pytest.fail)
    assert first("val") is None


def test_it_is_asked_again_behind_the_hook_of_the_first_batch():
    scene = Scene(None)
    assert scene.first("val") is None
    scene.found._changed = "Scaled.scale"
    assert scene.first("val") == "result"


def test_after_it_has_ended_nothing_is_looked_at():
    scene = Scene("Scaled.scale")
    scene.first.end()
    assert scene.first("val") is None
    assert (scene.said, scene.found.forgotten) == ([], 0)
