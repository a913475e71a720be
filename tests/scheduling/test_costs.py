"""The cost model: layers that were never seen, changing load, larger batches."""

import pytest

from overlap_train.scheduling import CostModel, Device
from overlap_train.scheduling.graph import Layer, Port, Work

CPU = Device("CPU")


def test_a_layer_without_a_profile_takes_what_its_fastest_first_run_took_under_that_load():
    known, new = (Layer(name, Work("conv"), (Port(-1),)) for name in ("known", "new"))
    costs = CostModel()
    costs.add_profile([(known, CPU, 1e-3)])
    assert costs.seconds(new, CPU) == 1e-3
    for _ in range(400):
        costs.observe(known, CPU, 3e-3)
    version = costs.version
    for seconds in (90.0, 0.6, 0.8):  # the first one was optimised by TensorFlow
        costs.observe(new, CPU, seconds, examples=2)
    assert costs.seconds(new, CPU) == pytest.approx(0.3)
    assert costs.version > version


def test_load_is_followed_up_and_down_and_carries_over_to_other_layers():
    seen, other = (Layer(name, Work("conv"), (Port(-1),)) for name in ("seen", "other"))
    costs = CostModel()
    costs.add_profile([(seen, CPU, 1e-3), (other, CPU, 2e-3)])
    version = costs.version
    for _ in range(400):
        costs.observe(seen, CPU, 3e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(3e-3, rel=0.1)
    assert costs.seconds(other, CPU) > 3e-3
    assert costs.version > version
    for _ in range(400):
        costs.observe(seen, CPU, 1e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(1e-3, rel=0.1)


def test_observations_for_a_larger_batch_do_not_look_like_load():
    layer = Layer("a", Work("conv"), (Port(-1),))
    costs = CostModel()
    costs.add_profile([(layer, CPU, 1e-3)])
    for _ in range(50):
        costs.observe(layer, CPU, 8e-3, examples=8)
    assert costs.seconds(layer, CPU) == pytest.approx(1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(seconds):
    with pytest.raises(ValueError, match=r"seconds of 'a' on 'CPU' in measured must be (positive|finite)"):
        CostModel().add_profile([(Layer("a", Work("conv"), (Port(-1),)), CPU, seconds)])
