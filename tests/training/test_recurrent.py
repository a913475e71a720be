"""LSTM and GRU on passes of their own are those of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from overlap_train._training import kernels
from overlap_train._training.recurrent import is_stock_recurrence, recur

pytestmark = pytest.mark.cpu_only("Keras asks cuDNN for LSTM and GRU on a GPU")

ROWS, STEPS, FEATURES, UNITS = 3, 5, 4, 2
KINDS = {"LSTM": keras.layers.LSTM, "GRU": keras.layers.GRU}
STATES = {"LSTM": 2, "GRU": 1}


def build(case):
    keras.utils.set_random_seed(case["seed"])
    flags = {name: case[name] for name in ("go_backwards", "return_sequences", "return_state", "stateful")}
    cell = {"use_bias": case["use_bias"], "dropout": case["dropout"]}
    zeroes = {"zero_output_for_mask": case["zero_output_for_mask"]}
    if case["wrapper"] == "cell":
        make_cell = {"LSTM": keras.layers.LSTMCell, "GRU": keras.layers.GRUCell}[case["kind"]]
        layer = keras.layers.RNN(make_cell(UNITS, **cell), **flags, **zeroes)
    else:
        layer = KINDS[case["kind"]](UNITS, **cell, **flags, **zeroes)
        if case["wrapper"] == "bidirectional":
            layer = keras.layers.Bidirectional(layer, merge_mode=case["merge_mode"])
    layer.build((ROWS, STEPS, FEATURES))
    rng = np.random.default_rng(case["seed"])
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def on_our_loops(step, layer):
    stock = [inner for inner in layer._flatten_layers() if is_stock_recurrence(inner)]
    assert stock
    swaps = tuple((inner, "inner_loop", lambda rows, inner=inner: recur(inner)) for inner in stock)
    return kernels.FastKernels(("recurrence",), swaps, times=False).around(step, None)


def pass_of(case, fast):
    """Returns outputs, gradients and the variables afterwards, of two calls of a traced step."""
    layer = build(case)
    rng = np.random.default_rng(case["seed"] + 1)
    many = STATES[case["kind"]] * (2 if case["wrapper"] == "bidirectional" else 1)
    tensors = {
        "x": rng.normal(size=(ROWS, STEPS, FEATURES)),
        "states": [rng.normal(size=(ROWS, UNITS)) for _ in range(many)] if case["initial_state"] else [],
    }
    tensors = tf.nest.map_structure(lambda each: tf.constant(each, tf.float32), tensors)
    mask = tf.constant(rng.random((ROWS, STEPS)) < 0.6) if case["mask"] else None

    def step(x, states, mask):
        with tf.GradientTape() as tape:
            watched = [x, *states]
            tape.watch(watched)
            options = {"initial_state": list(states)} if states else {}
            found = tf.nest.flatten(layer(x, mask=mask, training=case["training"], **options))
            loss = sum(tf.reduce_sum(tf.sin(each + 0.1 * k)) for k, each in enumerate(found))
        variables = [variable.value for variable in layer.trainable_variables]
        return found, tape.gradient(loss, [*watched, *variables], unconnected_gradients="zero")

    if fast:
        step = on_our_loops(step, layer)
    rows, steps = (ROWS if case["static_rows"] else None), (STEPS if case["static_steps"] else None)
    specs = [
        tf.TensorSpec((rows, steps, FEATURES)),
        [tf.TensorSpec((rows, UNITS))] * len(tensors["states"]),
        None if mask is None else tf.TensorSpec((rows, steps), tf.bool),
    ]
    traced = tf.function(step, autograph=False).get_concrete_function(*specs)
    flat = [tensor for tensor in (tensors["x"], *tensors["states"], mask) if tensor is not None]
    results = [traced(*flat) for _ in range(2)]
    return [*tf.nest.flatten(results), *layer.variables]


EITHER = (True, False)
# What varies: the values that are tried, and the usual one.
OPTIONS = {
    "wrapper": (("none", "cell", "bidirectional"), "none"),
    "merge_mode": (("concat", "sum", None), "concat"),
    "go_backwards": (EITHER, False),
    "return_sequences": (EITHER, True),
    "return_state": (EITHER, True),
    "stateful": (EITHER, False),
    "use_bias": (EITHER, True),
    "dropout": ((0.0, 0.0, 0.5), 0.5),
    "zero_output_for_mask": (EITHER, False),
    "initial_state": (EITHER, True),
    "mask": (EITHER, True),
    "training": (EITHER, True),
    "static_rows": (EITHER, False),
    "static_steps": (EITHER, True),
    "seed": (range(1001), 1),
}
PLAIN = {name: usual for name, (_, usual) in OPTIONS.items()}
cases = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, (values, _) in OPTIONS.items()}
    | {"kind": st.sampled_from(sorted(KINDS))}
)


def possible(case):
    """Returns a case with the options changed that Keras refuses."""
    changes = {}
    if case["stateful"]:
        changes["static_rows"] = True
    if case["wrapper"] == "bidirectional":
        # A stateful one fails where it returns its states, or no merged output, and has a mask.
        changes |= {"go_backwards": False} | ({"return_state": False} if case["stateful"] else {})
        changes |= {"merge_mode": "concat"} if case["return_state"] or case["stateful"] else {}
    return case | changes


@pytest.mark.nightly
@pytest.mark.timeout(900)
@settings(
    deadline=None,
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@example(PLAIN | {"kind": "LSTM"})
@example(PLAIN | {"kind": "GRU", "zero_output_for_mask": True, "return_sequences": False})
@given(cases)
def test_outputs_gradients_and_states_are_those_of_keras(case):
    case = possible(case)
    for ours, theirs in zip(pass_of(case, True), pass_of(case, False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_gradients_of_gradients_are_those_of_keras(kind):
    results = []
    for fast in (True, False):
        layer = build(PLAIN | {"kind": kind, "dropout": 0.0})

        def step(x, mask, layer=layer):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(tf.sin(layer(x, mask=mask, training=True)[0]))
                penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(penalty, [x, *[each.value for each in layer.trainable_variables]])

        if fast:
            step = on_our_loops(step, layer)
        rng = np.random.default_rng(3)
        x = tf.constant(rng.normal(size=(ROWS, STEPS, FEATURES)), tf.float32)
        mask = tf.constant(rng.random((ROWS, STEPS)) < 0.6)
        results.append(tf.function(step, autograph=False)(x, mask))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


class Overridden(keras.layers.LSTM):
    def inner_loop(self, *arguments, **options):
        return super().inner_loop(*arguments, **options)


class OverriddenCell(keras.layers.GRUCell):
    pass


def patched():
    layer = keras.layers.LSTM(2)
    layer.cell.call = layer.cell.call
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Overridden(2),
        patched(),
        keras.layers.RNN(OverriddenCell(2)),
        keras.layers.RNN([keras.layers.LSTMCell(2), keras.layers.LSTMCell(2)]),
        keras.layers.SimpleRNN(2),
        keras.layers.LSTM(2, activation="relu"),
        keras.layers.GRU(2, recurrent_activation="hard_sigmoid"),
        keras.layers.LSTM(2, recurrent_dropout=0.5),
        keras.layers.LSTM(2, dropout=0.5, implementation=1),
        keras.layers.LSTM(2, unroll=True),
        keras.layers.LSTM(2, use_cudnn=True),
        keras.layers.GRU(2, reset_after=False),
        keras.layers.GRU(2, dtype="mixed_bfloat16"),
        keras.layers.GRU(2, dtype="float64"),
        keras.layers.Dense(2),
    ],
    ids=lambda layer: layer.name,
)
def test_layers_that_compute_something_else_keep_their_loop(layer):
    assert not is_stock_recurrence(layer)
