"""The U-Net example, shrunk."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from tests import interpreters

EXAMPLE = Path(__file__).parents[2] / "examples" / "unet_tiled.py"


def forget_flags() -> None:
    """Lets go of the flags that examples have defined, so that another may define the same names."""
    by_module = flags.FLAGS.flags_by_module_dict()
    for module in ("importlib._bootstrap", "mnist_overlap", "unet_tiled"):
        for flag in list(by_module.get(module, ())):
            delattr(flags.FLAGS, flag.name)


@pytest.fixture(scope="module")
def example():
    forget_flags()
    spec = importlib.util.spec_from_file_location("unet_tiled", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    forget_flags()


def test_drawn_shapes_are_what_their_masks_say(example) -> None:
    data = example.draw_shapes(20, 24, 31, seed=1)
    assert data.name == "drawn shapes"
    assert data.images.shape == (20, 24, 31, 3)
    assert set(np.unique(data.masks)) == {0, 1, 2}
    again = example.draw_shapes(20, 24, 31, seed=1)
    np.testing.assert_array_equal(data.images, again.images)


def test_example_runs_and_saves_its_picture(tmp_path) -> None:
    command = [
        EXAMPLE,
        "--epochs=1",
        "--images=16",
        "--height=24",
        "--width=31",
        "--widths=4,8",
    ]
    result = interpreters.run(
        [*command, f"--output_dir={tmp_path}", f"--data_dir={tmp_path}"],
        env=os.environ | {"MPLBACKEND": "Agg"},
        check=True,
    )
    assert "mean IoU:" in result.stdout
    assert "drawn shapes" in result.stdout
    assert (tmp_path / "predictions.png").stat().st_size > 1000
