"""The virtual clock: against real threads, against the optimum, and under load."""

import random
import statistics
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import overlap_train.scheduling
from overlap_train.scheduling import CostModel, Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.policy import CpuOnly
from overlap_train.scheduling.simulation import Arrival, BackgroundLoad, simulate
from tests.scheduling.graphs import chain, optimum_s, random_costs, random_graph, random_platform, served


def test_a_request_alone_takes_hardly_longer_than_it_has_to():
    ratios = []
    for seed in range(150):
        rng = random.Random(seed)
        graph, platform = random_graph(rng, rng.randint(1, 8)), random_platform(rng)
        true_s = random_costs(rng, graph)
        ours = simulate([Arrival(graph)], platform, "earliest_finish", true_s).makespan_s
        ratios.append(ours / optimum_s(graph, platform, true_s, ours))
    assert statistics.mean(ratios) < 1.06
    assert sorted(ratios)[int(0.95 * len(ratios))] < 1.25


@settings(max_examples=100, deadline=None)
@given(
    duty=st.floats(0, 0.99),
    share=st.floats(0, 1),
    start_s=st.floats(0, 1),
    first_s=st.floats(0, 0.1),
    second_s=st.floats(0, 0.1),
)
@example(0.75, 2.2e-313, 0.625, 0.0, 0.0)
def test_background_load_does_the_same_work_whether_cut_or_not(duty, share, start_s, first_s, second_s):
    load = BackgroundLoad(duty, share)
    whole = load.end_s(start_s, first_s + second_s)
    assert load.end_s(load.end_s(start_s, first_s), second_s) == pytest.approx(
        whole, abs=load.period_s * 1e-3
    )
    speed = 1 - duty + duty * share
    assert whole - start_s == pytest.approx((first_s + second_s) / speed, abs=2 * load.period_s)


@pytest.mark.parametrize("policy", ["paper", "gpu_only", "cpu_only"])
def test_real_threads_place_layers_as_the_simulator_does(policy):
    rng = random.Random(11)
    graphs, platform = [random_graph(rng, 12, name=f"n{n}") for n in range(4)], random_platform(rng)
    true_s = random_costs(rng, *graphs)
    simulated = simulate([Arrival(g) for g in graphs], platform, policy, true_s)
    clock, spans = threading.Event(), []

    def backend(job):
        clock.wait(true_s(job.layer, job.device))
        return [None for _ in job.layer.output_bytes]

    recorder = SimpleNamespace(add=spans.append)
    served(platform, policy, graphs, costs=FixedCosts(true_s), backend=backend, recorder=recorder)
    real = {(span.name, span.details["device"]) for span in spans}
    assert real == {(f"{job.network}/{job.layer}", job.device) for job in simulated.jobs}


def test_load_on_the_gpu_drives_layers_to_the_cpu_once_it_is_seen():
    layers = [Layer(str(i), Work("conv"), (Port(i - 1),)) for i in range(200)]
    graph = LayerGraph(layers, [Port(199)])
    platform = Platform((Device("cpu"), Device("gpu", "gpu")))

    def true_s(layer, device):
        return 1e-3 if device.kind == "gpu" else 2e-3

    costs = CostModel()
    costs.add_profile(
        (layer, device, true_s(layer, device)) for layer in layers for device in platform.devices
    )
    loads = {"gpu": BackgroundLoad(0.9, 0.0)}
    result = simulate([Arrival(graph)], platform, "earliest_finish", true_s, costs=costs, loads=loads)
    used = Counter(job.device for job in result.jobs)
    assert used["cpu"] > 150
    assert costs.seconds(layers[-1], platform["gpu"]) > 2e-3


def test_what_a_transfer_takes_is_not_learned_as_the_devices_load():
    kinds = ("conv", "activation") * 100  # the paper's policy puts them on different devices
    layers = [Layer(str(i), Work(kind), (Port(i - 1),), (10**6,)) for i, kind in enumerate(kinds)]
    link = Transfer(1e-3)
    platform = Platform((Device("cpu"), Device("gpu", "gpu")), {("cpu", "gpu"): link, ("gpu", "cpu"): link})
    costs = CostModel()
    costs.add_profile((layer, device, 1e-3) for layer in layers for device in platform.devices)
    arrival = Arrival(LayerGraph(layers, [Port(199)], input_bytes=(10**6,)))
    result = simulate([arrival], platform, "paper", lambda layer, device: 1e-3, costs=costs)
    assert result.makespan_s == pytest.approx(0.4)
    for device in platform.devices:
        assert costs.seconds(layers[0], device) == pytest.approx(1e-3)


def test_what_waits_goes_to_a_device_that_becomes_idle():
    """The GPU turns out to be ten times slower than known; the second request need not wait for it."""
    platform = Platform((Device("cpu", "cpu"), Device("gpu", "gpu")))
    costs = FixedCosts(lambda layer, device: float(layer.name.split(":")[1]) * 1e-3)
    graphs = [chain("a", 10), chain("b", 10), chain("c", 10), chain("d", 10)]
    load = {"gpu": BackgroundLoad(0.9, 0.0, 0.2)}
    found = simulate(
        [Arrival(g) for g in graphs], platform, "earliest_finish", costs.seconds, costs=costs, loads=load
    )
    where = {job.network: job.device for job in found.jobs}
    assert sorted(where.values()) == ["cpu", "cpu", "cpu", "gpu"]
    fixed = simulate([Arrival(g) for g in graphs], platform, "gpu_only", costs.seconds, costs=costs)
    assert {job.device for job in fixed.jobs} == {"gpu"}


def test_layers_that_share_the_memory_take_longer_if_that_is_asked_for():
    """Two layers read 1 GB in a second each; together they would have 1 GB/s and more."""
    layers = [Layer(name, Work("conv", moved_bytes=1e9), (Port(-1),)) for name in "ab"]
    graph = LayerGraph(layers, [Port(0), Port(1)])
    platform = Platform((Device("cpu", slots=2),))
    for bytes_per_s, finish_s in ((float("inf"), 1.0), (4e9, 1.0), (1e9, 2.0), (0.5e9, 4.0)):
        result = simulate(
            [Arrival(graph)], platform, "cpu_only", lambda *_: 1.0, memory_bytes_per_s=bytes_per_s
        )
        assert result.makespan_s == finish_s


def test_a_policy_may_return_a_device_that_equals_the_platforms():
    policy = type("Copying", (CpuOnly,), {"select": lambda *_: Device("cpu")})()
    arrivals = [Arrival(chain("a", 1)), Arrival(chain("b", 1))]
    assert simulate(arrivals, Platform((Device("cpu"),)), policy, lambda *_: 1.0).makespan_s == 2.0


PACKAGE = str(Path(overlap_train.scheduling.__file__).parents[1])


def test_core_imports_without_tensorflow():
    """The package's own `__init__` may import the trainer, so a bare one stands in its place."""
    code = (
        "import sys, types; "
        f"package = types.ModuleType('overlap_train'); package.__path__ = [{PACKAGE!r}]; "
        "sys.modules['overlap_train'] = package; "
        "import overlap_train.scheduling as s; "
        "import overlap_train.scheduling.segments, overlap_train.scheduling.service; "
        "import overlap_train.scheduling.engine, overlap_train.scheduling.simulation; "
        "s.CostModel, s.MultiModelScheduler; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.nightly
def test_the_simulated_comparison_holds_its_bounds_and_marks_every_row():
    from overlap_train.models.alexnet import alexnet
    from overlap_train.scheduling.models import split_model
    from scripts.bench import scheduling
    from scripts.bench import scheduling_simulated as simulated

    model = alexnet((64, 64, 3), 10)
    networks = dict.fromkeys(
        ("densenet201", "resnet152", "vgg16", "alexnet"), lambda cut=None: split_model(model, cut=cut).graph
    )
    rows = simulated.compare_policies(networks, steady_s=0.0)
    assert all(row["marked"].startswith("simulated") for row in rows)
    shared = simulated.compare_policies(networks, steady_s=0.0, contention=True)
    assert all("shared memory" in row["marked"] for row in shared)
    with_contention, without = (
        [sum(row["makespan_s"].values()) for row in found] for found in (shared, rows)
    )
    assert sum(with_contention) > sum(without), (
        "the GPU and all cores read more at once than the memory gives"
    )
    for row in rows:
        assert set(row["makespan_s"]) == set(simulated.COLUMNS)
        makespan_s = dict(row["makespan_s"])
        assert row["lower_bound_cut_s"] <= makespan_s.pop("earliest_finish, cut") * (1 + 1e-9)
        assert row["lower_bound_s"] <= min(makespan_s.values()) * (1 + 1e-9)
    two = next(row for row in rows if row["scenario"] == "2 AlexNet" and row["load"] == "60%")
    assert two["lower_bound_cut_s"] < two["lower_bound_s"]
    assert two["makespan_s"]["earliest_finish, cut"] < two["makespan_s"]["earliest_finish"]
    scenario = simulated.SCENARIOS[0]
    graphs = {name: networks[name]() for name in scenario.networks}
    costs = simulated.profiled(list(graphs.values()))
    rounds = simulated.run(graphs, scenario.networks, "paper", scenario.loads["60%"], costs)
    assert len(rounds) > 1  # short requests are simulated until the load is known
    assert len({round_.makespan_s for round_ in rounds}) > 1  # and begin anywhere in its period
    page = scheduling.finding({"simulated": rows})
    (cells,) = (cells for _, cells in page.tables)
    assert [row[0] for row in cells.body] == [f"{row['scenario']}, load {row['load']}" for row in rows]
