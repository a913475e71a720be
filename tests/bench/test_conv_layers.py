"""The ratios of convolution layers, and that their contestants are timed in rounds."""

from __future__ import annotations

from overlap_train.conv.measurements import DIRECTIONS, STOCK
from scripts.bench.conv_layers import Row, _interleave, summarise
from scripts.bench.conv_shapes import LAYERS, Layer


def _row(auto_ms: float, chosen: str, layer: Layer = LAYERS["unet"][1]) -> Row:
    times = {STOCK: [0.9, 1.0, 1.1], "auto": [0.9 * auto_ms, auto_ms, 5.0 * auto_ms]}
    return Row(layer, 1, "forward", 1.0, times, chosen)


def test_a_ratio_is_of_times_of_the_same_round():
    slower_machine = {STOCK: [1.0, 1.0, 3.0, 3.0, 3.0], "auto": [0.5, 0.5, 1.5, 1.5, 1.5]}
    assert Row(LAYERS["unet"][1], 1, "forward", 1.0, slower_machine, "winograd").ratio("auto") == 2.0


def test_the_summary_leaves_out_layers_of_few_channels():
    rows = [_row(0.5, "winograd"), _row(0.125, "winograd"), _row(10.0, "direct", LAYERS["unet"][0])]
    assert summarise(rows) == {"forward": {"auto": {"geometric_mean": 4.0, "minimum": 2.0}}}


def test_a_round_runs_each_contestant_once_in_an_order_of_its_own():
    ran: list[str] = []
    functions = {name: lambda name=name: ran.append(name) for name in (STOCK, "direct", "auto")}
    times = _interleave(functions, budget_s=0.05)
    assert set(times) == set(functions)
    ran = ran[6:]  # each runs twice before it is timed
    rounds = [tuple(ran[at : at + 3]) for at in range(0, len(ran), 3)]
    assert len(rounds) >= 9
    assert all(sorted(names) == sorted(functions) for names in rounds)
    assert len(set(rounds)) > 1


def test_gflops_are_those_of_the_direct_method():
    layer = Layer(9, 8, 3, 5, kernel=3, stride=2)
    for direction in DIRECTIONS:
        assert layer.key(direction, 2).flops == 2 * (2 * 5 * 4) * (3 * 3 * 3 * 5)
