"""`RayReport` with a stand-in for Ray Train; `test_launchers.py` runs it on Ray where that is installed."""

import contextlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from overlap_train import CheckpointPolicy, Trainer
from overlap_train.parallel import RayReport
from tests.networks import arrays, sequential


class StandIn(types.ModuleType):
    """Keeps what is reported as Ray does: a checkpoint's files, whose directory is gone afterwards."""

    def __init__(self, rank=0):
        super().__init__("ray.train")
        self.rank, self.reports, self.last = rank, [], None
        self.Checkpoint = types.SimpleNamespace(from_directory=Path)

    def get_context(self):
        return types.SimpleNamespace(get_world_rank=lambda: self.rank)

    def get_checkpoint(self):
        return self

    @contextlib.contextmanager
    def as_directory(self):
        yield self.last

    def report(self, metrics, checkpoint=None):
        files = {} if checkpoint is None else {p.name: p.read_bytes() for p in checkpoint.iterdir()}
        self.reports.append((metrics, files))


@pytest.fixture
def ray(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(train=stand_in))
    monkeypatch.setitem(sys.modules, "ray.train", stand_in)
    monkeypatch.setattr(stand_in, "get_checkpoint", lambda: stand_in if stand_in.last else None)
    return stand_in


def trained(resume, epochs):
    model = sequential("adam")
    policy = CheckpointPolicy(resume, keep=10)
    Trainer(model).fit(*arrays(), 32, epochs=epochs, callbacks=[RayReport(resume)], resume=policy, verbose=0)
    return model


@pytest.mark.nightly
def test_each_epoch_is_reported_and_its_checkpoint_goes_to_another_machine(ray, tmp_path):
    whole = trained(tmp_path / "whole", 5)
    assert [metrics["epoch"] for metrics, _ in ray.reports] == list(range(5))
    assert [m["loss"] for m, _ in ray.reports] == pytest.approx(whole.history.history["loss"])
    names = [name for _, files in ray.reports for name in files]
    assert len(names) == len(set(names))  # each once
    assert set(names) <= {path.name for path in (tmp_path / "whole").iterdir()}

    trained(tmp_path / "one", 3)
    ray.last = tmp_path / "kept"
    ray.last.mkdir()
    newest = max((tmp_path / "one").glob("*.otck"))
    (ray.last / newest.name).write_bytes(newest.read_bytes())
    ray.reports.clear()
    resumed = trained(tmp_path / "another machine", 5)
    assert [metrics["epoch"] for metrics, _ in ray.reports] == [3, 4]
    assert newest.name not in [name for _, files in ray.reports for name in files]
    for own, other in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(own, other)


def test_workers_behind_the_first_report_metrics_alone(ray, tmp_path):
    ray.rank, ray.last = 1, tmp_path
    (tmp_path / "ckpt-000001.otck").write_bytes(b"")
    report = RayReport(tmp_path / "own")
    report.on_epoch_end(2, {"loss": 1.5, "text": "no number"})
    assert ray.reports == [({"epoch": 2, "loss": 1.5}, {})]
    assert not (tmp_path / "own").exists()


def test_what_is_no_directory_is_refused(ray):
    with pytest.raises(TypeError, match="resume"):
        RayReport(3)
