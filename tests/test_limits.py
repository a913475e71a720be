"""Fits where descriptors, threads, disk or the right to write are scarce, in forks, and where something runs
around them: as ever, or refused by a message, and never a wait."""

from __future__ import annotations

import pytest

from tests import forked, limits_target

# Few processes of several cases each: most of the time of one goes into its first fit.
CASES = [
    limits_target.few_descriptors,
    limits_target.threads_and_surroundings,
    limits_target.file_systems,
    limits_target.forks,
    pytest.param(limits_target.under_pytest_without_a_cache, marks=pytest.mark.nightly),
]


@pytest.mark.nightly
@pytest.mark.by_default("forks")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_fit_is_as_ever_or_refused(case, tmp_path):
    said = forked.run(case, tmp_path, said=tmp_path.parent / f"{tmp_path.name}.said")
    print(said)
    if limits_target.NO_RIGHT in said:
        pytest.skip(f"{limits_target.NO_RIGHT} (CAP_SYS_ADMIN)")
