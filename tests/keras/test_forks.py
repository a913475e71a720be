"""TensorFlow does not run in the fork of a process that had used it, and that is said."""

from __future__ import annotations

import os

import pytest

from overlap_train._keras import forks


def test_where_nothing_was_forked_it_runs():
    assert forks._parent is None
    forks.require_runtime()


@pytest.mark.parametrize("used", [True, False])
def test_a_fork_of_one_that_had_used_it_is_refused(monkeypatch, used):
    monkeypatch.setattr(forks, "_parent", None)
    monkeypatch.setattr(forks, "_is_running", lambda: used)
    forks._note_fork()
    if not used:
        forks.require_runtime()
        return
    with pytest.raises(RuntimeError, match=rf"forked from process {os.getppid()} after that had used"):
        forks.require_runtime()


def test_it_is_known_whether_the_runtime_runs():
    import tensorflow as tf

    tf.constant(1)
    assert forks._is_running()
