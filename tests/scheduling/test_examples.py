"""The example and the benchmark run, shrunk; the core needs no TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import overlap_train.scheduling

PACKAGE = str(Path(overlap_train.scheduling.__file__).parents[1])


def test_core_imports_without_tensorflow():
    """The package's own `__init__` may import the trainer, so a bare one stands in its place."""
    code = (
        "import sys, types; "
        f"package = types.ModuleType('overlap_train'); package.__path__ = [{PACKAGE!r}]; "
        "sys.modules['overlap_train'] = package; "
        "import overlap_train.scheduling as s; "
        "import overlap_train.scheduling.segments, overlap_train.scheduling.service; "
        "s.simulate, s.Engine, s.CostModel, s.MultiModelScheduler; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ROOT = Path(__file__).parents[2]


def load_example():
    spec = importlib.util.spec_from_file_location("multi_dnn", ROOT / "examples" / "multi_dnn.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.by_default("True")
def test_multi_dnn_serves_everything_and_writes_a_timeline(one_at_a_time, tmp_path, capsys):
    path = tmp_path / ("timeline.png" if one_at_a_time else "timeline.json")
    arguments = ["--networks", "MobileNetV3Small", "--size", "32", "--requests", "4", "--timeline", str(path)]
    arguments += ["--one-at-a-time", "--cut", "2"] if one_at_a_time else []
    statistics = load_example().main(arguments)
    assert statistics.models["MobileNetV3Small"].completed == 4
    assert "requests/s" in capsys.readouterr().out
    if one_at_a_time:
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["args"]["device"] for event in events if event["ph"] == "X"} == {"CPU:0"}


def test_the_simulated_comparison_holds_its_bounds_and_marks_every_row():
    from overlap_train.models.alexnet import alexnet
    from overlap_train.scheduling.models import split_model
    from scripts.bench import scheduling
    from scripts.bench import scheduling_simulated as simulated

    model, names = alexnet((64, 64, 3), 10), ("densenet201", "resnet152", "vgg16", "alexnet")
    graph, cut = split_model(model).graph, split_model(model, cut=8).graph
    graphs = dict.fromkeys(names, graph)
    rows = simulated.compare_policies({1: graphs, 8: dict.fromkeys(names, cut)}, steady_s=0.0)
    assert all(row["marked"].startswith("simulated") for row in rows)
    for row in rows:
        assert set(row["makespan_s"]) == set(simulated.COLUMNS)
        makespan_s = dict(row["makespan_s"])
        assert row["lower_bound_cut_s"] <= makespan_s.pop("earliest_finish, cut") * (1 + 1e-9)
        assert row["lower_bound_s"] <= min(makespan_s.values()) * (1 + 1e-9)
    two = next(row for row in rows if row["scenario"] == "2 AlexNet" and row["load"] == "60%")
    assert two["lower_bound_cut_s"] < two["lower_bound_s"]
    assert two["makespan_s"]["earliest_finish, cut"] < two["makespan_s"]["earliest_finish"]
    scenario = simulated.SCENARIOS[0]
    rounds = simulated.run(
        graphs, scenario.networks, "paper", scenario.loads["60%"], simulated.profiled([graph])
    )
    assert len(rounds) > 1  # short requests are simulated until the load is known
    assert len({round_.makespan_s for round_ in rounds}) > 1  # and begin anywhere in its period
    page = scheduling.finding({"simulated": rows})
    (cells,) = (cells for _, cells in page.tables)
    assert [row[0] for row in cells.body] == [f"{row['scenario']}, load {row['load']}" for row in rows]
