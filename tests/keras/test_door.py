"""The only door to Keras's private API: each name behind it, with what breaks when Keras moves it."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import overlap_train
from overlap_train import _keras
from overlap_train._keras import copies as _keras_copies
from overlap_train._keras import replicas as _keras_replicas
from tests.networks import (
    CLASSES,
    FEATURES,
    arrays,
    crossentropy,
    functional,
    functional_data,
    sequential,
    subclassed,
)

X, Y = arrays(20)
ROOT = Path(overlap_train.__file__).parent


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def generator():
    while True:
        yield X[:4], Y[:4]


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


DOORS = {
    "keras.src": {"_keras/"},
    "tensorflow.python": {
        "_keras/",
        "_inspection/effects.py",
        "_inspection/graph.py",
        "scheduling/runtime/tensorflow_backend.py",
    },
}


@pytest.mark.parametrize("private", DOORS)
def test_no_other_module_imports_private_modules(private):
    through = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(private) for name in names):
                place = path.relative_to(ROOT)
                through.add("_keras/" if place.parts[0] == "_keras" else place.as_posix())
    assert through == DOORS[private]


@pytest.mark.parametrize(
    ("data", "arrays_", "dataset_", "rewindable", "batches"),
    [
        ((X, Y), True, False, True, 5),
        ((dataset(),), False, True, True, 5),
        ((Rows(),), False, False, True, 5),
        ((generator(),), False, False, False, None),
    ],
    ids=["arrays", "dataset", "PyDataset", "generator"],
)
def test_adapters_are_told_apart(data, arrays_, dataset_, rewindable, batches):
    """get_data_adapter and the adapter classes: without them no data of the user's can be read."""
    adapter = _keras.adapt(*data, batch_size=4 if arrays_ else None)
    assert _keras.is_array_adapter(adapter) is arrays_
    assert _keras.is_tf_dataset_adapter(adapter) is dataset_
    assert _keras.is_rewindable_adapter(adapter) is rewindable
    assert adapter.num_batches == batches
    x, y = next(iter(adapter.get_tf_dataset()))
    np.testing.assert_allclose(x, X[:4])
    np.testing.assert_allclose(y, Y[:4])


def test_shuffle_is_dropped_for_data_that_brings_its_own_order():
    """Else Keras warns, and warnings are errors here."""
    for data in (dataset(), generator()):
        _keras.adapt(data, shuffle=True)


def test_arrays_come_as_keras_batches_them():
    """ArrayDataAdapter._inputs and array_slicing.convert_to_sliceable."""
    adapter = _keras.adapt(
        X.astype("float64"), Y, batch_size=4, class_weight={0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}
    )
    x, y, weight = _keras.array_inputs(adapter)
    assert x.dtype == keras.config.floatx()
    assert y.dtype == Y.dtype
    np.testing.assert_allclose(weight, np.where(Y == 1, 2.0, 1.0))
    assert _keras.are_dense((x, y, weight))
    assert not _keras.are_dense((x, None))


def test_the_order_of_rows_is_that_of_fit():
    """ArrayDataAdapter's shuffle: without it equal seeds give another order than Keras's."""
    for shuffle in (True, "batch", False):
        keras.utils.set_random_seed(4)
        adapter = _keras.adapt(np.arange(20), batch_size=4, shuffle=shuffle)
        expected = np.concatenate([np.ravel(tf.nest.flatten(batch)[0]) for batch in adapter.get_tf_dataset()])
        keras.utils.set_random_seed(4)
        rows = np.concatenate([np.ravel(b) for b in _keras.array_order_dataset(20, 4, shuffle)])
        np.testing.assert_array_equal(rows, expected)
        assert sorted(rows) == list(range(20))


def test_the_last_rows_are_split_off():
    """array_slicing.train_validation_split."""
    (x, y, _), (xv, yv, _) = _keras.split_validation((X, Y, None), 0.25)
    assert len(x) == len(y) == 15
    np.testing.assert_array_equal(xv, X[15:])
    np.testing.assert_array_equal(yv, Y[15:])


def test_logs_become_floats_and_a_list_in_keras_s_order():
    """pythonify_logs and Model._flatten_metrics_in_order."""
    model = functional()
    x, y = functional_data(20)
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    assert _keras.flatten_logs(model, logs) == pytest.approx(model.evaluate(x, y, verbose=0))
    python = _keras.python_logs({"b": tf.constant(1.5), "a": {"c": tf.constant(2.0)}})
    assert python == {"b": 1.5, "c": 2.0}
    assert all(type(value) is float for value in python.values())


def test_whether_a_model_is_compiled_and_whether_all_of_it_is_built():
    """Model.compiled, _compile_metrics, _compile_loss, _flatten_layers."""
    model = keras.Sequential([keras.layers.Dense(CLASSES)])
    with pytest.raises(ValueError, match="not compiled"):
        _keras.require_compiled(model)
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    _keras.require_compiled(model)
    assert not _keras.compiled_metrics_built(model)
    model.fit(X, Y, verbose=0)
    assert _keras.compiled_metrics_built(model)


def test_the_containers_of_compile_are_opened():
    """compile_utils.CompileMetrics and MetricsList: closed, every metric would count as unknown."""
    model = functional()
    x, y = functional_data(20)
    model.evaluate(x, y, verbose=0)
    names = {type(metric).__name__ for metric in _keras.metric_leaves(model)}
    assert names <= {"Mean", "SparseCategoricalAccuracy", "MeanAbsoluteError"}
    assert {"SparseCategoricalAccuracy", "MeanAbsoluteError"} <= names
    variables = [id(v) for metric in _keras.metric_leaves(model) for v in metric.variables]
    assert sorted(variables) == sorted(id(v) for v in model.metrics_variables)


def test_own_methods_are_told_from_keras_s():
    """Methods of Keras live in modules named keras...."""
    assert _keras.is_stock_method(sequential().train_step)
    assert _keras.is_stock_method(keras.metrics.Mean().update_state)
    assert _keras.is_stock_method(keras.metrics.MeanSquaredError().update_state)
    assert not _keras.is_stock_method(subclassed().call)
    assert not _keras.is_stock_method(lambda: None)


def test_a_missing_part_of_a_batch_is_none_again():
    """The adapters of Keras carry a None through tf.data as an empty optional."""

    def batches():
        while True:
            yield X[:4], None, np.ones(4, "float32")

    adapter = _keras.adapt(batches())
    x, y, weight = _keras.without_optionals(next(iter(adapter.get_tf_dataset())))
    assert y is None
    assert tf.is_tensor(x)
    assert tf.is_tensor(weight)


def warned(run):
    """Returns what a call gives and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(warning.message) for warning in caught]


def test_the_cap_on_epochs_for_debugging():
    """keras.config.max_epochs, and the warning of `fit`."""
    assert _keras.capped_epochs(7) == 7
    keras.config.set_max_epochs(3)
    try:
        assert warned(lambda: _keras.capped_epochs(2)) == (2, [])
        assert warned(lambda: _keras.capped_epochs(3)) == (3, [])
        capped, told = warned(lambda: _keras.capped_epochs(7))
        history, keras_told = warned(lambda: sequential().fit(X, Y, epochs=7, verbose=0))
        assert capped == len(history.epoch) == 3
        assert told == keras_told
    finally:
        keras.config.set_max_epochs(None)


def test_the_cap_on_steps_for_debugging():
    """keras.config.max_steps_per_epoch, and the warning of `fit`; it caps an epoch of all batches too."""
    assert _keras.capped_steps(7) == 7
    assert _keras.capped_steps(None) is None
    keras.config.set_max_steps_per_epoch(3)
    try:
        assert warned(lambda: _keras.capped_steps(2)) == (2, [])
        assert warned(lambda: _keras.capped_steps(None))[0] == 3
        capped, told = warned(lambda: _keras.capped_steps(7))
        model = sequential()
        _, keras_told = warned(lambda: model.fit(X, Y, batch_size=2, steps_per_epoch=7, verbose=0))
        assert capped == int(model.optimizer.iterations) == 3
        assert told == keras_told
    finally:
        keras.config.set_max_steps_per_epoch(None)


def test_the_train_function_is_keras_s_and_compile_takes_it_away():
    """make_train_function, train_function: they say how long a trace is good for."""
    model = sequential()
    assert _keras.train_function(model) is None
    function = _keras.begin_training(model)
    assert function is not None
    assert _keras.begin_training(model) is function is _keras.train_function(model)
    assert _keras.is_stock_method(function)
    model.fit(X, Y, verbose=0)
    assert _keras.train_function(model) is function
    model.make_train_function(force=True)
    assert _keras.train_function(model) is not function
    model.compile("sgd", "mse")
    assert _keras.train_function(model) is None


def test_the_test_function_is_keras_s_and_compile_makes_another():
    """make_test_function, test_function."""
    model = sequential()
    function = _keras.test_function(model)
    model.evaluate(X, Y, verbose=0)
    assert _keras.test_function(model) is function is model.test_function
    model.compile("sgd", "mse")
    assert _keras.test_function(model) is not function


def test_a_train_function_of_the_users_own_is_told_from_keras_s():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {}

    model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy())
    assert not _keras.is_stock_method(_keras.begin_training(model))


def test_a_test_function_of_the_users_own_is_told_from_keras_s():
    """make_test_function, test_function: what they run need not be `test_step`."""

    class Own(keras.Sequential):
        def make_test_function(self, force=False):
            self.test_function = lambda iterator: {}

    model = sequential()
    assert not _keras.has_own_test_function(model)
    model.evaluate(X, Y, verbose=0)
    assert not _keras.has_own_test_function(model)
    model.test_function = lambda iterator: {}
    assert _keras.has_own_test_function(model)
    assert _keras.has_own_test_function(Own())


def test_steps_run_eagerly_for_the_model_or_for_the_whole_process():
    """Model.run_eagerly, tf.config.functions_run_eagerly."""
    assert not _keras.runs_eagerly(sequential())
    assert _keras.runs_eagerly(sequential(run_eagerly=True))
    tf.config.run_functions_eagerly(True)
    try:
        assert _keras.runs_eagerly(sequential())
    finally:
        tf.config.run_functions_eagerly(False)


def test_metrics_that_go_by_a_plain_value_are_told_from_those_that_can_be_compiled():
    """A trace would keep for ever what the value was when it was made; Keras asks each time."""

    class Doubled(keras.metrics.Mean):
        def result(self):
            return super().result() * 2

    class Scaled(keras.metrics.Mean):
        factor = 2.0

        def result(self):
            return super().result() * self.factor

    class Resets(keras.Sequential):
        def reset_metrics(self):
            super().reset_metrics()

    def compiled(kind=keras.Sequential, metric=None):
        model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile("sgd", crossentropy())
        model.own = metric
        return _keras.metrics_by_python(model)

    assert compiled() is None
    assert compiled(metric=Doubled()) is None
    assert compiled(metric=Scaled()) == "Scaled.result"
    assert compiled(Resets) == "Resets.reset_metrics"


def test_logs_count_only_where_the_metrics_have_other_names():
    """_get_metrics_result_or_logs."""
    model = sequential()
    model.evaluate(X, Y, verbose=0)
    metrics = _keras.python_logs(model.get_metrics_result())
    same = _keras.metrics_or_logs(model, {"accuracy": 7.0, "loss": 8.0})
    assert _keras.python_logs(same) == metrics
    other = {"loss": 8.0, "extra": 9.0}
    assert _keras.metrics_or_logs(model, other) == other


def test_steps_per_execution_groups_steps_and_is_one_unless_it_is_set():
    assert _keras.steps_per_execution(sequential()) == 1
    assert _keras.steps_per_execution(sequential(steps_per_execution=3)) == 3


def test_a_variable_has_a_handle_for_each_replica():
    """Variable.value, which under a strategy is not one variable but several."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = keras.Variable([1.0, 2.0])
    assert _keras.variable_handles(mirrored) == [mirrored.value.values[0].handle]
    variable = keras.Variable(1.0)
    (handle,) = _keras.variable_handles(variable)
    assert handle is variable.value.handle
    variable.assign(5.0)
    assert float(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)) == 5.0


def test_what_can_be_trained_is_a_layer_and_a_trainer():
    """backend.tensorflow.trainer.TensorFlowTrainer: a base class, which need not be keras.Model's."""

    class Both(keras.Layer, _keras.KerasTrainer):
        def __init__(self):
            keras.Layer.__init__(self)
            _keras.KerasTrainer.__init__(self)

    assert _keras.is_trainer(sequential())
    assert _keras.is_trainer(Both())
    assert not _keras.is_trainer(keras.layers.Dense(1))
    assert not _keras.is_trainer(object())


def test_an_override_is_the_users_and_not_what_a_library_puts_into_keras_s_class(monkeypatch):
    class Middle(keras.Sequential):
        def fit(self, *arguments, **options):
            return super().fit(*arguments, **options)

    class Own(Middle):
        pass

    assert _keras.overrides(Own(), "fit") is Middle
    assert _keras.overrides(Own(), "evaluate") is None
    assert _keras.overrides(Own(), "no_such_method") is None
    assert _keras.overrides(sequential(), "fit") is None
    instance = sequential()
    instance.fit = lambda *arguments, **options: None
    assert _keras.overrides(instance, "fit") is type(instance)
    stock = _keras.KerasTrainer.fit
    monkeypatch.setattr(
        _keras.KerasTrainer, "fit", lambda *arguments, **options: stock(*arguments, **options)
    )
    assert _keras.overrides(sequential(), "fit") is None
    assert _keras.overrides(Own(), "fit") is Middle


def test_classes_of_keras_s_are_told_from_those_of_its_own_tests():
    """A class's module: Keras's tests are in its package, but are written as users write."""
    assert _keras.is_keras_class(keras.Sequential)
    assert _keras.is_keras_class(_keras.KerasTrainer)
    assert not _keras.is_keras_class(Rows)
    assert not _keras.is_keras_class(type("Fake", (), {"__module__": "keras.src.trainers.trainer_test"}))
    assert not _keras.is_keras_class(type("Fake", (), {"__module__": "keras_hub.models"}))


def evaluations(model, data, callbacks=(), **options):
    listed = keras.callbacks.CallbackList(callbacks, model=model)
    for _ in range(2):
        yield _keras.evaluate_as_in_fit(model, data, callbacks=listed, **options)


def test_a_validation_by_the_models_own_evaluate_is_that_of_fit():
    """TFEpochIterator, _eval_epoch_iterator, _use_cached_eval_dataset, of which one is kept."""

    def shuffled():
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(4)

    class Own(keras.Sequential):
        def evaluate(self, *arguments, **options):
            return {**super().evaluate(*arguments, **options), "own": float(len(told))}

    def build():
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
        model.compile(keras.optimizers.SGD(0.0), crossentropy(), metrics=["accuracy"])
        return model

    told = [1, 2]
    expected, actual = build(), build()
    fit = expected.fit(X, Y, epochs=2, verbose=0, validation_data=shuffled(), validation_steps=2)
    logs = list(evaluations(actual, (shuffled(), None, None), batch_size=None, steps=2))
    for epoch, ours in enumerate(logs):
        theirs = {name: fit.history[f"val_{name}"][epoch] for name in ours}
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert ours["own"] == 2.0
    assert logs[0]["loss"] != logs[1]["loss"], "the second one began anew"
    assert actual._eval_epoch_iterator is not None
    _keras.forget_evaluation(actual)
    assert getattr(actual, "_eval_epoch_iterator", None) is None
    _keras.forget_evaluation(actual)


def test_a_validation_by_the_models_own_evaluate_tells_the_callbacks_of_the_fit():
    heard = []

    class Listening(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            heard.append(batch)

    model = sequential()
    list(evaluations(model, (X, Y, None), [Listening()], batch_size=8, steps=None))
    assert heard == [0, 1, 2] * 2
    _keras.forget_evaluation(model)


def test_whether_a_dataset_gives_the_same_again():
    """tf.raw_ops.DatasetToGraphV2 and Dataset._variant_tensor."""
    python = tf.data.Dataset.from_generator(
        generator, output_signature=(tf.TensorSpec([4, FEATURES]), tf.TensorSpec([4]))
    )
    assert _keras.is_repeatable(dataset())
    assert not _keras.is_repeatable(python)
    assert not _keras.is_repeatable(dataset().map(lambda x, y: (x + tf.random.normal([FEATURES]), y)))


@pytest.mark.parametrize("scaled", [False, True])
def test_the_sum_over_replicas_is_spared_where_there_is_one(scaled):
    """Optimizer._all_reduce_sum_gradients, LossScaleOptimizer.inner_optimizer."""
    optimizer = keras.optimizers.SGD(0.5)
    stock = optimizer._all_reduce_sum_gradients
    outer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0) if scaled else optimizer
    variable = keras.Variable([1.0, 2.0])
    outer.build([variable])
    with _keras.without_all_reduce(outer):
        inside = optimizer._all_reduce_sum_gradients
        outer.apply_gradients([(tf.constant([2.0, 2.0]), variable)])
    assert inside != stock
    assert optimizer._all_reduce_sum_gradients == stock
    np.testing.assert_allclose(variable.numpy(), [0.0, 1.0])
    with _keras.without_all_reduce(None):
        pass


def test_a_model_knows_the_scope_that_made_it_and_so_does_its_optimizer():
    """`_distribute_strategy`, `_distribution_strategy`: else a foreign scope would train without a word."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        inside = sequential()
    outside = sequential()
    assert _keras_replicas.strategy_of(inside) is strategy
    assert _keras_replicas.strategy_of(outside) is None
    assert _keras_replicas.optimizer_strategy(inside.optimizer) is strategy
    assert _keras_replicas.optimizer_strategy(outside.optimizer) is not strategy
    wrapped = keras.optimizers.LossScaleOptimizer(outside.optimizer)
    assert _keras_replicas.inner_optimizer(wrapped) is outside.optimizer
    assert _keras_replicas.inner_optimizer(outside.optimizer) is outside.optimizer


def test_symbolic_build_makes_all_variables():
    model = subclassed()
    spec = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64))
    _keras_replicas.symbolic_build(model, spec)
    assert _keras.compiled_metrics_built(model)
    assert model.optimizer.built


def test_masks_can_be_read_and_set():
    tensor = tf.zeros([2, 3])
    assert _keras_replicas.mask_of(tensor) is None
    _keras_replicas.set_mask(tensor, tf.ones([2, 3], tf.bool))
    assert _keras_replicas.mask_of(tensor) is not None


def test_losses_take_the_logits_that_are_set_instead_of_the_output():
    probabilities, logits = tf.constant([[1.0, 0.0]]), tf.constant([[300.0, 100.0]])
    assert _keras_replicas.logits_of(probabilities) is None
    _keras_replicas.set_logits(probabilities, logits)
    loss = keras.losses.sparse_categorical_crossentropy(tf.constant([1]), probabilities)
    np.testing.assert_allclose(loss, [200.0])
    assert _keras_replicas.logits_of(keras.ops.softmax(logits)) is logits
    assert _keras_replicas.logits_of(keras.ops.sigmoid(logits)) is logits


def test_what_wraps_a_stock_function_is_not_one():
    import functools

    @functools.wraps(keras.losses.mean_squared_error)
    def own(y, y_pred):
        return y_pred

    assert _keras.is_stock_method(keras.losses.mean_squared_error)
    assert not _keras.is_stock_method(own)


def test_losses_are_not_scaled_in_the_block_and_only_on_this_thread():
    """`scale_loss_for_distribution`, looked up in its module by all of Keras's losses."""
    import threading

    from keras.src.losses import loss as module

    stock = module.scale_loss_for_distribution
    elsewhere = []
    with _keras_replicas.unscaled_losses():
        patched = module.scale_loss_for_distribution
        assert patched is not stock
        value = object()
        assert patched(value) is value
        thread = threading.Thread(target=lambda: elsewhere.append(float(patched(tf.constant(2.0)))))
        thread.start()
        thread.join(timeout=30)
    assert elsewhere == [2.0]  # by Keras's own function, which takes a tensor
    assert module.scale_loss_for_distribution is stock


def test_gradients_are_not_summed_again_in_the_block():
    """`_all_reduce_sum_gradients` is what applies gradients calls on each replica."""
    optimizer = keras.optimizers.SGD()
    stock = optimizer._all_reduce_sum_gradients
    with _keras_replicas.gradients_already_reduced(optimizer):
        assert optimizer._all_reduce_sum_gradients(zip([1], [2], strict=True)) == [(1, 2)]
    assert optimizer._all_reduce_sum_gradients == stock


def test_added_losses_are_kept_apart_and_put_back():
    """`_losses` and `_loss_ids`: what `model.losses` reads."""
    model = subclassed()
    model(X)
    with _keras_replicas.added_losses_apart(_keras.flat_layers(model)) as begin:
        added = begin()
        model(X)
        assert [layer for layer, _ in added] == [model]
        assert len(model.losses) == 1  # the regulariser's
    _keras_replicas.place_added_losses(model, [(model, tf.constant(5.0))])
    assert float(model.losses[0]) == 5.0
    with _keras_replicas.without_updates(model):
        _keras_replicas.place_added_losses(model, [(model, tf.constant(7.0))])
        assert float(model.losses[0]) == 7.0
        assert len(model.losses) == 2


def test_assignments_are_forgotten_in_the_block():
    model = sequential()
    before = model.optimizer.iterations.numpy()
    with _keras_replicas.without_updates(model):
        model.optimizer.iterations.assign_add(1)
    assert model.optimizer.iterations.numpy() == before


def test_adam_keeps_its_moments_by_variable():
    """Optimizer._get_variable_index, Adam._momentums, Adam._velocities."""
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    optimizer.build(variables)
    optimizer.apply_gradients([(tf.constant([1.0, 2.0]), variables[0]), (tf.constant([3.0]), variables[1])])
    m, v = _keras.adam_moments(optimizer, variables[1].value)
    np.testing.assert_allclose(m, [0.3], rtol=1e-5)
    np.testing.assert_allclose(v, [0.009], rtol=1e-5)


def test_building_leaves_random_states_and_names_as_they_were():
    keras.utils.set_random_seed(3)
    names = dict(_keras_copies.global_state.get_global_attribute("object_name_uids") or {})
    with _keras_copies.undisturbed():
        sequential()
        keras.random.normal((2,))
        np.random.random()
    assert dict(_keras_copies.global_state.get_global_attribute("object_name_uids")) == names
    inside = np.random.random(), float(tf.random.uniform(())), keras.random.randint((), 0, 10**6).numpy()
    keras.utils.set_random_seed(3)
    assert inside == (
        np.random.random(),
        float(tf.random.uniform(())),
        keras.random.randint((), 0, 10**6).numpy(),
    )


def test_what_a_model_was_compiled_with():
    model = sequential("sgd")
    arguments = _keras_copies.compile_arguments(model)
    assert arguments["loss"] is model.loss
    assert {"optimizer", "metrics", "weighted_metrics", "jit_compile", "run_eagerly"} <= set(arguments)
    assert _keras_copies.compile_arguments(keras.Sequential()) is None


def test_functions_in_a_configuration_are_made_again_where_they_are_trusted():
    layer = keras.layers.Lambda(lambda x: x + 1)
    with pytest.raises(ValueError, match=r"unsafe|safe_mode"):
        keras.layers.Lambda.from_config(layer.get_config())
    with _keras_copies.trusted():
        assert keras.layers.Lambda.from_config(layer.get_config()) is not None


def test_the_attributes_of_every_model():
    assert {"name", "built", "compiled"} <= _keras_copies.base_attributes()


@pytest.mark.parametrize("name", ["fit", "evaluate"])
def test_the_cell_of_a_method_holds_what_it_runs(name):
    cell = _keras.method_cell(name)
    before = cell.cell_contents
    try:
        cell.cell_contents = lambda self, *args, **kwargs: "exchanged"
        assert getattr(sequential(), name)(X, Y) == "exchanged"
    finally:
        cell.cell_contents = before
    assert _keras.patched_by(sequential(), name) is None
