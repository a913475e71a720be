"""Fits where descriptors, threads, disk or the right to write are scarce, in forks, and where something runs
around them: as ever, or refused by a message, and never a wait."""

from __future__ import annotations

import pytest

from tests import forked, limits_target

CASES = [
    limits_target.few_descriptors,
    limits_target.few_threads,
    limits_target.short_files,
    limits_target.full_disk,
    limits_target.read_only_root,
    limits_target.forked_after_a_fit,
    limits_target.forked_before,
    limits_target.surroundings,
    limits_target.under_pytest_without_a_cache,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_fit_is_as_ever_or_refused(case, tmp_path):
    said = forked.run(case, tmp_path, said=tmp_path.parent / f"{tmp_path.name}.said")
    print(said)
    if limits_target.NO_RIGHT in said:
        pytest.skip(f"{limits_target.NO_RIGHT} (CAP_SYS_ADMIN)")
