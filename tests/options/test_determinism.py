"""`configure(deterministic=True)`: the same bits, whatever runs at the same time."""

import itertools
import json

import pytest

import overlap_train
from tests import interpreters

THREADS = (1, 2, 4)
WAYS = ("straight", "resumed")
ALL = [
    *itertools.product(("dense", "conv"), range(4), range(1, 5), WAYS),
    *itertools.product(("parts",), (0, 3), (1, 4), WAYS),
    *itertools.product(("recurrent",), range(2), (1, 3), ("straight",)),
    *itertools.product(("dense",), (1,), (2,), ("split",)),
]  # times three numbers of threads: 231


def hashes(threads, settings, timeout=570):
    """Returns the hash of each setting, from one process."""
    names = [",".join(map(str, setting)) for setting in settings]
    run = interpreters.run(["-m", "tests.determined", str(threads), *names], check=True, timeout=timeout)
    return json.loads(run.stdout.splitlines()[-1])


def kinds(found):
    """Returns the hashes by what they may depend on: the model, and whether its batches are split."""
    by_kind = {}
    for name, digest in found:
        model, _, _, way = name.split(",")
        by_kind.setdefault((model, way == "split"), set()).add(digest)
    return by_kind


@pytest.mark.timeout(600)
def test_lags_workers_resumes_and_threads_change_no_bit():
    settings = {
        1: [("conv", 0, 1, "straight"), ("parts", 3, 3, "straight")],
        4: [("conv", 2, 4, "resumed"), ("parts", 0, 1, "straight")],
    }
    found = [item for threads, some in settings.items() for item in hashes(threads, some).items()]
    counts = {kind: len(digests) for kind, digests in kinds(found).items()}
    assert counts == {("conv", False): 1, ("parts", False): 1}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_two_hundred_settings_have_one_hash_a_model():
    found = [item for threads in THREADS for item in hashes(threads, ALL, 1200).items()]
    assert len(found) >= 200
    counts = {kind: len(digests) for kind, digests in kinds(found).items()}
    models = (("dense", False), ("conv", False), ("parts", False), ("recurrent", False), ("dense", True))
    assert counts == dict.fromkeys(models, 1)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_hash_tells_other_bits():
    split, whole = (hashes(2, [("dense", 1, 2, way)]) for way in ("split", "straight"))
    assert {*split.values()} != {*whole.values()}


def test_threads_that_share_an_operation_are_refused():
    with pytest.raises(ValueError, match="deterministic=True needs intra_op_threads=1; got 2"):
        overlap_train.configure(deterministic=True, intra_op_threads=2)
    with pytest.raises(TypeError, match="deterministic must be"):
        overlap_train.configure(deterministic="yes")
