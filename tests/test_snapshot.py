"""Contract C1: a snapshot is taken without a copy, nothing changes it afterwards, it can be restored."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._inspection.traced import TracedFunction
from overlap_train._snapshot import ModelState, StateVariable
from tests.networks import FEATURES, arrays, linear, looking_up

X, Y = arrays(32)
OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Lion", "Adafactor"]
# Under XLA two in every run, the others nightly: what is compiled differs little from one to the next.
CASES = [
    pytest.param(
        *(name, jit),
        id=f"{name}-{'xla' if jit else 'graph'}",
        marks=(pytest.mark.nightly,) if jit and name not in ("SGD", "Adam") else (),
    )
    for name in OPTIMIZERS
    for jit in (False, True)
]


def model_of(optimizer, jit=False):
    return linear(lambda: keras.layers.Dropout(0.5), optimizer=optimizer, jit_compile=jit)


def compiled_steps(model):
    """Returns a function that makes a training step in one compiled call, and is traced already."""
    x, y = tf.constant(X), tf.constant(Y)

    @tf.function(autograph=False, jit_compile=bool(model.jit_compile))
    def steps():
        model.train_step((x, y))

    steps()
    return steps


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def copies(values):
    return [value.numpy().copy() for value in values.flat()]


def assert_equal(values, expected):
    for value, copy in zip(values.flat(), expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), copy)


@pytest.mark.cpu_only("NumPy finds no address in the memory of a GPU")
@pytest.mark.parametrize(("name", "jit"), CASES)
@pytest.mark.by_default("Lion-graph")
def test_a_snapshot_shares_the_buffers_and_no_step_changes_it(name, jit):
    model = model_of(getattr(keras.optimizers, name)(), jit)
    steps = compiled_steps(model)
    state = ModelState(model)
    snapshot = state.read()
    again = state.read()
    big = [i for i, v in enumerate(snapshot.flat()) if v.shape.rank]
    assert big
    assert all(address(snapshot.flat()[i]) == address(again.flat()[i]) for i in big), "a read made a copy"
    expected = copies(snapshot)
    for _ in range(3):
        steps()
    assert_equal(snapshot, expected)
    now = state.read()
    assert any(np.any(a != b) for a, b in zip(copies(now), expected, strict=True))
    state.restore(snapshot)
    assert_equal(state.read(), expected)
    assert all(address(state.read().flat()[i]) == address(snapshot.flat()[i]) for i in big), (
        "a restore copied"
    )
    steps()
    assert_equal(snapshot, expected)


def test_training_on_from_a_restored_snapshot_repeats_itself():
    """Seeds of the dropout, momenta and the iteration count are part of it."""
    model = model_of(keras.optimizers.Adam())
    steps = compiled_steps(model)
    state = ModelState(model)
    snapshot = state.read()
    steps()
    first = copies(state.read())
    state.restore(snapshot)
    steps()
    assert_equal(state.read(), first)


def handles_of(variables):
    return {id(handle) for variable in variables for handle in variable.handles}


def outside():
    """Returns a model and a step of it that uses variables which the model does not list."""
    model = model_of(keras.optimizers.SGD())
    generator, second = tf.random.Generator.from_seed(3), keras.optimizers.SGD(0.1, momentum=0.9)
    scale, calls = keras.Variable(2.0, name="scale"), tf.Variable(0.0, name="calls")

    def step(batch):
        calls.assign_add(1.0)
        x = batch[0] * scale.value + generator.uniform([FEATURES])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        weights = model.trainable_variables
        second.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    spec = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int64))
    return model, TracedFunction(step, spec)


def test_what_a_step_uses_outside_the_model_is_taken_and_put_back_with_it():
    """Of a closure, a random generator and an optimizer that the model does not know."""
    model, step = outside()
    batch = tf.constant(X), tf.constant(Y)
    state = ModelState(model, step.variables)
    names = [variable.name for variable in state.outside]
    assert {"scale", "calls", "StateVar"} <= set(names)
    assert any("momentum" in name for name in names)
    assert handles_of(state.variables) >= {id(variable.handle) for variable in step.variables}
    assert len(handles_of(state.variables)) == len(state.variables), "one of the model's was taken twice"
    snapshot = state.read()
    assert len(snapshot.outside) == len(names)
    expected = copies(snapshot)
    step(batch)
    first = copies(state.read())
    assert_equal(snapshot, expected)
    touched = {state.variables[index].name for index in state.changed(snapshot)}
    assert {"calls", "StateVar"} <= touched
    assert "scale" not in touched
    state.restore(snapshot)
    assert state.changed(snapshot) == []
    step(batch)
    assert_equal(state.read(), first)
    assert_equal(snapshot, expected)


def test_a_variable_in_two_lists_of_the_model_is_taken_once():
    """As that of a metric that is a weight too: restored twice, it could come back with the wrong value."""

    class Tracked(keras.metrics.Metric):
        def __init__(self, variable):
            super().__init__(name="tracked")
            self.seen = variable

        def update_state(self, *arguments, **options):
            pass

        def result(self):
            return self.seen

    class Layer(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.metric = Tracked(self.kernel)

    model = keras.Sequential([keras.Input((1,)), Layer(1)])
    model.compile("sgd", "mse")
    assert any(v is model.layers[0].kernel for v in model.metrics_variables)
    state = ModelState(model)
    assert len(handles_of(state.variables)) == len(state.variables)


@pytest.mark.parametrize(
    ("how", "value", "copies"),
    [("ONLY_FIRST_REPLICA", 1.0, [4.0, 4.0]), ("SUM", 3.0, [4.0, 0.0]), ("MEAN", 1.5, [4.0, 4.0])],
)
def test_copies_on_replicas_are_read_and_set_as_keras_aggregates_them(how, value, copies):
    variables = tf.Variable(1.0), tf.Variable(2.0)
    handles = tuple(variable.handle for variable in variables)
    how = tf.VariableAggregation[how]
    state = StateVariable("v", handles, tf.float32, tf.TensorShape(()), how)
    assert float(state.read()) == value
    state.assign(tf.constant(4.0))
    assert [float(variable) for variable in variables] == copies


def test_an_embedding_with_sgd_is_safe_though_its_updates_scatter():
    model = looking_up(keras.optimizers.SGD(0.5))
    steps = compiled_steps(model)
    state = ModelState(model)
    snapshot = state.read()
    expected = copies(snapshot)
    for _ in range(4):
        steps()
    assert np.any(model.trainable_variables[0].numpy() != expected[0])
    assert_equal(snapshot, expected)
    state.restore(snapshot)
    steps()
    assert_equal(snapshot, expected)


def changes(value, new, dtype="float32"):
    """Returns the names of what has changed after one weight went from `value` to `new`."""

    class Layer(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.extra = self.add_weight(
                shape=(2,), dtype=dtype, initializer="zeros", trainable=False, name="extra", autocast=False
            )

    layer = Layer(1)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    layer.extra.assign(np.asarray(value, dtype))
    state = ModelState(model)
    snapshot = state.read()
    layer.extra.assign(np.asarray(new, dtype))
    return [state.variables[index].name.split("/")[-1] for index in state.changed(snapshot)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8", "bool"])
def test_a_change_is_seen_in_every_dtype_and_equal_bits_are_none(dtype):
    assert changes([1, 0], [1, 1], dtype) == ["extra"]
    assert changes([1, 0], [1, 0], dtype) == []


def test_nan_equals_itself_and_minus_zero_is_a_change():
    assert changes([np.nan, 1], [np.nan, 1]) == []
    assert changes([np.nan, 1], [np.nan, 2]) == ["extra"]
    assert changes([0.0, 1], [-0.0, 1]) == ["extra"]


def test_a_change_of_the_learning_rate_counts_and_one_of_the_metrics_does_not():
    model = model_of(keras.optimizers.Adam(0.1))
    model.fit(X, Y, verbose=0)
    state = ModelState(model)
    snapshot = state.read()
    model.reset_metrics()
    assert state.changed(snapshot) == []
    model.optimizer.learning_rate = 0.01
    changed = [state.variables[index].name for index in state.changed(snapshot)]
    assert changed == [model.optimizer.learning_rate.path]
