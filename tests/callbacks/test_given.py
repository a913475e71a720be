"""Which objects answer Python's special methods by code that somebody wrote."""

from __future__ import annotations

import pytest
import tqdm

from overlap_train._callbacks.given import Known, asks


class Own:
    def __len__(self):
        return 3


@pytest.mark.parametrize(
    ("value", "methods", "expected"),
    [
        (Known(Own()), ["__len__"], True),
        (Known(Own()), ["__bool__", "__len__"], True),
        (Known(Own()), ["__iter__"], False),
        (Known(Own), ["__len__"], False),
        (Known(3), ["__len__"], False),
        (Known([]), ["__len__"], False),
        (Known(tqdm.tqdm(disable=True)), ["__len__"], False),
        ("no object at hand", ["__len__"], False),
    ],
)
def test_special_methods_that_somebody_wrote_are_asked(value, methods, expected):
    assert asks(value, *methods) is expected
