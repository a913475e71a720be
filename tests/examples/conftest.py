"""Examples define flags of the same names: each test module begins without those of the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from absl import flags


@pytest.fixture(autouse=True, scope="module")
def own_flags() -> Iterator[None]:
    before = set(flags.FLAGS)
    yield
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
