"""What cannot be meant under a strategy is refused at the start, with a message that says what to do."""

from tests.training.replicas.two_cpus import STRATEGY, on_two  # isort: skip  # before anything starts TensorFlow

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, Largest, arrays, crossentropy, linear, sequential


def refuses(model, message, plan=None, **arguments):
    with pytest.raises(ValueError, match=message):
        Trainer(model, execution=plan).fit(*arrays(), verbose=0, **arguments)


def mirrored(build=sequential):
    return on_two(build)()


def trainer_within(strategy, model):
    with strategy.scope():
        return Trainer(model)


def with_a_layer_from_outside():
    outside = keras.layers.Dense(CLASSES)
    outside.build((None, FEATURES))
    return mirrored(lambda: linear(lambda: outside))


# What is made, in the scope of which strategy, and what that says.
REFUSED = {
    "no strategy": (
        lambda: Trainer(sequential(), strategy="mirrored"),
        r"strategy must be a tf.distribute.Strategy or None; got str",
    ),
    "a model from outside": (
        lambda: Trainer(sequential(), strategy=STRATEGY),
        r"'sequential' was not made in the scope of the MirroredStrategy",
    ),
    "another strategy": (
        lambda: Trainer(mirrored(), strategy=tf.distribute.OneDeviceStrategy("CPU:1")),
        "not made in the scope of the OneDeviceStrategy",
    ),
    "an unsupported one": (
        lambda: Trainer(
            sequential(),
            strategy=tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
        ),
        "CentralStorageStrategy is not supported; pass a tf.distribute.Mir",
    ),
    "a model from outside, in a scope": (
        lambda: trainer_within(STRATEGY, sequential()),
        "was not made in the scope of the Mirrored",
    ),
    "in the scope of another strategy": (
        lambda: trainer_within(tf.distribute.OneDeviceStrategy("CPU:1"), mirrored()),
        "outside it",
    ),
    "a layer from outside": (lambda: Trainer(with_a_layer_from_outside()), "all its layers included"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_strategy_that_cannot_train_the_model(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_an_optimizer_from_outside_the_scope():
    model = mirrored()
    model.compile(keras.optimizers.SGD(), crossentropy())
    refuses(model, "the optimizer SGD of the model 'sequential' was not made in the scope")


def test_a_batch_that_is_smaller_than_the_replicas_are_many():
    refuses(mirrored(), "batch_size is 1, and 2 replicas are to share each batch", batch_size=1)


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (ExecutionPlan(batch_splits=2), {}, "batch_splits is not possible under a tf.distribute strategy"),
        (ExecutionPlan(jit=True), {}, "jit=True is not possible under a tf.distribute strategy"),
        (ExecutionPlan(kernels="fast"), {}, "kernels='fast' is not possible under a tf.distribute strategy"),
        (None, {"jit_compile": True}, r"model.compile\(jit_compile=True\) is not possible"),
    ],
)
def test_plans_and_models_for_one_device(plan, options, message):
    refuses(mirrored(lambda: sequential(**options)), message, plan)


def test_gradient_accumulation():
    model = mirrored(lambda: sequential(keras.optimizers.SGD(gradient_accumulation_steps=2)))
    refuses(model, "gradient_accumulation_steps does not work under tf.distribute")


class Changing(keras.layers.Layer):
    """Calls a function with the layer, which has a metric of its own and a Dropout, and the inputs."""

    def __init__(self, change):
        super().__init__()
        self.change, self.largest, self.drop = change, Largest(), keras.layers.Dropout(0.5)

    def call(self, x):
        return self.change(self, x)


WITHOUT = "without a row for each row of the inputs"
# What becomes of an input, and how that is refused: where the batches have a static size, and where not.
OF_OTHER_ROWS = {
    "no rows": (lambda layer, x: keras.ops.mean(x), WITHOUT, ValueError),
    "twice as many": (lambda layer, x: keras.ops.concatenate([x, x]), WITHOUT, tf.errors.OpError),
    "one": (lambda layer, x: keras.ops.mean(x, axis=0, keepdims=True), WITHOUT, tf.errors.OpError),
    "dropout over columns": (
        lambda layer, x: keras.ops.transpose(layer.drop(keras.ops.transpose(x), training=True)),
        f"Dropout layer .* is of shape .*, {WITHOUT}",
        ValueError,
    ),
    "a metric": (
        lambda layer, x: layer.largest.update_state(None, x) or x,
        "call updates the metric 'largest'",
        ValueError,
    ),
}


@pytest.mark.parametrize(("change", "message", "error"), OF_OTHER_ROWS.values(), ids=OF_OTHER_ROWS)
def test_a_model_that_does_not_treat_rows_one_by_one(change, message, error):
    def build():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3), Changing(change)])
        model.compile("sgd", lambda y, p: keras.ops.sum(p))
        return model

    model, rows = mirrored(build), tf.data.Dataset.from_tensor_slices(arrays(64))
    for data, kind in ((rows.batch(32, drop_remainder=True), ValueError), (rows.batch(32), error)):
        with pytest.raises(kind, match=message):
            Trainer(model).fit(data, verbose=0)


def test_inputs_that_differ_in_their_rows():
    def build():
        rows, others = keras.Input((FEATURES,)), keras.Input((FEATURES,))
        model = keras.Model([rows, others], keras.layers.Dense(CLASSES)(rows) + keras.ops.mean(others))
        model.compile("sgd", crossentropy())
        return model

    (x, y), (others, _) = arrays(32), arrays(64)
    data = tf.data.Dataset.from_tensors(((x, others), y))
    with pytest.raises(ValueError, match=rf"an input \('1'\) is of shape \(64, 12\), {WITHOUT}"):
        Trainer(mirrored(build)).fit(data, verbose=0)


def test_a_device_that_is_not_there():
    trainer = Trainer(sequential(), validation=ValidationPolicy(workers=("GPU:3",)))
    with pytest.raises(ValueError, match=r"there is no device 'GPU:3'; TensorFlow has CPU:0, CPU:1"):
        trainer.fit(*arrays(), validation_data=arrays(40, 1), verbose=0)


def test_a_collective_that_fails_says_that_the_process_must_be_started_anew():
    """Replicas that send each other rows of one length in one batch and of another in the next."""

    class Sending(keras.Sequential):
        def train_step(self, data):
            lengths = tf.random.uniform([], 1, 9, tf.int32)
            context = tf.distribute.get_replica_context()
            context.all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros([lengths]))
            return super().train_step(data)

    model = mirrored(lambda: linear(kind=Sending))
    with pytest.raises(tf.errors.OpError) as raised:
        Trainer(model).fit(*arrays(64), batch_size=32, epochs=8, verbose=0)
    assert any("Start the program anew" in note for note in raised.value.__notes__)
