"""What cannot be meant under a strategy is refused at the start, with a message that says what to do."""

from __future__ import annotations

from tests.training.replicas.two_cpus import STRATEGY, on_two  # isort: skip  # before anything starts TensorFlow

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, crossentropy, sequential


def refuses(model, message, plan=None, **arguments):
    with pytest.raises(ValueError, match=message):
        Trainer(model, execution=plan).fit(*arrays(), verbose=0, **arguments)


def test_something_that_is_no_strategy():
    with pytest.raises(TypeError, match=r"strategy must be a tf.distribute.Strategy or None; got str"):
        Trainer(sequential(), strategy="mirrored")


def test_a_strategy_that_did_not_make_the_model():
    with pytest.raises(ValueError, match=r"'sequential' was not made in the scope of the MirroredStrategy"):
        Trainer(sequential(), strategy=STRATEGY)


def test_a_trainer_in_the_scope_for_a_model_from_outside():
    model = sequential()
    with STRATEGY.scope(), pytest.raises(ValueError, match="was not made in the scope of the Mirrored"):
        Trainer(model)


def test_a_layer_from_outside_the_scope():
    outside = keras.layers.Dense(CLASSES)
    outside.build((None, FEATURES))

    def build():
        model = keras.Sequential([keras.Input((FEATURES,)), outside])
        model.compile("sgd", crossentropy())
        return model

    with pytest.raises(ValueError, match="all its layers included"):
        Trainer(on_two(build)())


def test_an_optimizer_from_outside_the_scope():
    model = on_two(sequential)()
    model.compile(keras.optimizers.SGD(), crossentropy())
    refuses(model, "the optimizer SGD of the model 'sequential' was not made in the scope")


def test_another_strategy_than_the_models():
    other = tf.distribute.OneDeviceStrategy("CPU:1")
    with pytest.raises(ValueError, match="not made in the scope of the OneDeviceStrategy"):
        Trainer(on_two(sequential)(), strategy=other)


def test_the_scope_of_another_strategy():
    model = on_two(sequential)()
    with tf.distribute.OneDeviceStrategy("CPU:1").scope(), pytest.raises(ValueError, match="outside it"):
        Trainer(model)


def test_strategies_that_are_not_supported():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with pytest.raises(
        ValueError, match=r"CentralStorageStrategy is not supported; pass a tf.distribute.Mir"
    ):
        Trainer(sequential(), strategy=strategy)


def test_a_batch_that_is_smaller_than_the_replicas_are_many():
    refuses(on_two(sequential)(), "batch_size is 1, and 2 replicas are to share each batch", batch_size=1)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (ExecutionPlan(batch_splits=2), "batch_splits"),
        (ExecutionPlan(jit=True), "jit=True"),
        (ExecutionPlan(kernels="fast"), "kernels='fast'"),
    ],
)
def test_plans_for_one_device(plan, named):
    refuses(
        on_two(sequential)(),
        f"{named} is not possible under a tf.distribute strategy of several replicas",
        plan,
    )


def test_a_model_compiled_for_xla():
    model = on_two(lambda: sequential(jit_compile=True))()
    refuses(model, r"model.compile\(jit_compile=True\) is not possible")


def test_gradient_accumulation():
    model = on_two(lambda: sequential(keras.optimizers.SGD(gradient_accumulation_steps=2)))()
    refuses(model, "gradient_accumulation_steps does not work under tf.distribute")


def test_an_output_that_has_no_rows():
    class Mean(keras.layers.Layer):
        def call(self, x):
            return keras.ops.mean(x)

    def build():
        inputs = keras.Input((FEATURES,))
        model = keras.Model(inputs, Mean()(keras.layers.Dense(3)(inputs)))
        model.compile("sgd", lambda y, p: p)
        return model

    refuses(on_two(build)(), "without a row for each row of the inputs")


@pytest.mark.parametrize(
    ("workers", "error", "message"),
    [
        ("CPU:0", TypeError, "workers must be an integer, a sequence of devices"),
        ((1,), ValueError, "workers must be a number or names of devices"),
        ((), ValueError, "workers is empty"),
    ],
)
def test_devices_that_cannot_be_meant(workers, error, message):
    with pytest.raises(error, match=message):
        ValidationPolicy(workers=workers)


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

    with STRATEGY.scope():
        model = Sending([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile("sgd", crossentropy())
    with pytest.raises(tf.errors.OpError) as raised:
        Trainer(model).fit(*arrays(64), batch_size=32, epochs=8, verbose=0)
    assert any("Start the program anew" in note for note in raised.value.__notes__)
