"""The simulated comparison runs, shrunk; the core needs no TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
