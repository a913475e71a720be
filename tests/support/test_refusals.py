"""A refusal is told from other errors, and from one of somebody else."""

from __future__ import annotations

import pytest

from overlap_train._support.refusals import is_refusal_of, refusing


@pytest.mark.parametrize("kind", [TypeError, ValueError, RuntimeError])
def test_bad_arguments_are_refused_and_nothing_else_is(kind):
    one, other = object(), object()
    with pytest.raises(kind) as caught, refusing(one):
        raise kind
    assert is_refusal_of(one, caught.value) == (kind is not RuntimeError)
    assert not is_refusal_of(other, caught.value)
    assert not is_refusal_of(one, ValueError())
