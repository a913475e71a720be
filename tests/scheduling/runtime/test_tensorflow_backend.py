"""Segments as compiled functions: traced for each device, timed on real tensors."""

from __future__ import annotations

import os

import keras
import pytest
import tensorflow as tf

from overlap_train.scheduling import Device
from overlap_train.scheduling.models import split_model
from overlap_train.scheduling.preparing import (
    compile_segments,
    profile_layers,
    tensorflow_platform,
)
from overlap_train.scheduling.segments import merge_layers
from tests.scheduling.graph.test_model_splitting import ONE_CORE, branching_model


def test_profile_times_every_layer_on_every_device():
    split = split_model(branching_model())
    every = [range(i, i + 1) for i in range(len(split.graph))]
    graph = compile_segments(split, merge_layers(split.graph, every), ONE_CORE)
    measured = profile_layers(graph, ONE_CORE)
    assert [layer.name for layer, _, _ in measured] == [layer.name for layer in graph.layers]
    assert all(0 < seconds < 10 for _, _, seconds in measured)


def test_devices_that_tensorflow_lacks_are_refused():
    with pytest.raises(ValueError, match=r"no device \['CPU:77'\]"):
        tensorflow_platform([Device("CPU:77")])


@pytest.mark.parametrize("devices", [[], ()])
def test_no_device_is_refused(devices):
    with pytest.raises(ValueError, match="devices is empty"):
        tensorflow_platform(devices)


def test_what_is_no_device_is_refused_by_name():
    with pytest.raises(TypeError, match=r"devices.* must be a .*Device"):
        tensorflow_platform(["CPU:0"])


def test_by_default_the_cpu_has_a_slot_for_each_core():
    platform = tensorflow_platform()
    assert platform["CPU:0"].slots == len(os.sched_getaffinity(0))
    assert [device.name for device in platform.of_kind("cpu")] == ["CPU:0"]


def small():
    inputs = keras.Input((3,))
    x = keras.layers.Dense(2, kernel_initializer="ones", name="d")(inputs)
    return keras.Model(inputs, keras.layers.ReLU()(x))


@pytest.mark.parametrize("constant", [False, True])
def test_constant_weights_are_those_of_the_moment(constant):
    model = small()
    split = split_model(model)
    graph = compile_segments(
        split, merge_layers(split.graph, [range(2)]), ONE_CORE, constant_weights=constant
    )
    (segment,) = graph.layers
    run = segment.runs["CPU:0"]
    assert [(spec.shape.as_list(), spec.dtype) for spec in run.specs] == [([None, 3], tf.float32)]
    (before,) = run((tf.ones((1, 3)),))
    model.layers[1].kernel.assign(model.layers[1].kernel * 2.0)
    (after,) = run((tf.ones((1, 3)),))
    assert before.numpy().tolist() == [[3.0, 3.0]]
    assert after.numpy().tolist() == ([[3.0, 3.0]] if constant else [[6.0, 6.0]])


def test_each_device_has_a_function_of_its_own_and_is_timed():
    split = split_model(small())
    graph = compile_segments(split, merge_layers(split.graph, [range(1), range(1, 2)]), ONE_CORE)
    calls = []
    for layer in graph.layers:
        run = layer.runs["CPU:0"]
        run._function = lambda *inputs, stock=run._function, name=layer.name: (
            calls.append(name) or stock(*inputs)
        )
    measured = profile_layers(graph, ONE_CORE, repeats=2)
    names = [layer.name for layer in graph.layers]
    assert calls == [name for name in names for _ in range(3)]  # once to warm up
    assert [(layer.name, device.name) for layer, device, _ in measured] == [(n, "CPU:0") for n in names]
