"""Keras's private names, and where they are in the versions of Keras that this package allows.

The other modules of this room import them from here. A Keras that lacks one is refused when the room is first
imported, and not in the middle of a training. A name that moves gets another place in its row.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras

BEFORE_3_16 = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16)

_missing: list[str] = []


def _find(*places: str) -> Any:
    """Return what is at the first of these places below `keras.src` that this Keras has."""
    for place in places:
        module, _, name = f"keras.src.{place}".rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    _missing.append(" or ".join(f"keras.src.{place}" for place in places))
    return None


_ADAPTERS = "trainers.data_adapters"
ArrayDataAdapter = _find(f"{_ADAPTERS}.array_data_adapter.ArrayDataAdapter")
GeneratorDataAdapter = _find(f"{_ADAPTERS}.generator_data_adapter.GeneratorDataAdapter")
GrainDatasetAdapter = _find(f"{_ADAPTERS}.grain_dataset_adapter.GrainDatasetAdapter")
OrderedEnqueuer = _find(f"{_ADAPTERS}.py_dataset_adapter.OrderedEnqueuer")
PyDatasetAdapter = _find(f"{_ADAPTERS}.py_dataset_adapter.PyDatasetAdapter")
TFDatasetAdapter = _find(f"{_ADAPTERS}.tf_dataset_adapter.TFDatasetAdapter")
array_slicing = _find(f"{_ADAPTERS}.array_slicing")
can_convert_arrays = _find(f"{_ADAPTERS}.array_data_adapter.can_convert_arrays")
get_data_adapter = _find(f"{_ADAPTERS}.get_data_adapter")

# Renamed in 3.16.
KerasTrainer = _find("backend.tensorflow.trainer.Trainer", "backend.tensorflow.trainer.TensorFlowTrainer")
EpochIterator = _find("trainers.epoch_iterator.EpochIterator")
TFEpochIterator = _find("backend.tensorflow.trainer.TFEpochIterator")
CompileLoss = _find("trainers.compile_utils.CompileLoss")
CompileMetrics = _find("trainers.compile_utils.CompileMetrics")
MetricsList = _find("trainers.compile_utils.MetricsList")
pythonify_logs = _find("utils.python_utils.pythonify_logs")

Functional = _find("models.functional.Functional")
SafeModeScope = _find("saving.serialization_lib.SafeModeScope")
get_stateless_scope = _find("backend.get_stateless_scope")
in_stateless_scope = _find("backend.in_stateless_scope")
global_seed_generator = _find("random.seed_generator.global_seed_generator")
global_state = _find("backend.common.global_state")
loss_module = _find("losses.loss")

# The attributes of their instances.
_ATTRIBUTES: Mapping[Any, str] = {
    KerasTrainer: (
        "_aggregate_additional_loss _compile_config _compile_loss _compile_metrics _compute_loss "
        "_distribute_strategy _eval_epoch_iterator _flatten_metrics_in_order _get_metrics_result_or_logs "
        "_initial_epoch _loss_tracker _maybe_symbolic_build _symbolic_build"
    ),
    keras.Layer: (
        "_call_has_training_arg _clear_losses _flatten_layers _inbound_nodes _loss_ids _losses _trainable"
    ),
    keras.Sequential: "_functional",
    Functional: (
        "_adjust_input_rank _convert_inputs_to_tensors _inputs_struct _nodes_by_depth _outputs_struct "
        "_run_through_graph _standardize_inputs"
    ),
    keras.Variable: "_name _path",
    keras.optimizers.Optimizer: "_all_reduce_sum_gradients _distribution_strategy _get_variable_index",
    keras.optimizers.Adam: "_momentums _velocities",
    keras.losses.MeanSquaredError: "_fn_kwargs fn",
    keras.callbacks.TensorBoard: "_should_trace",
    CompileLoss: "_flat_losses",
    ArrayDataAdapter: "_inputs _num_samples",
    GeneratorDataAdapter: "_first_batches",
    OrderedEnqueuer: "executor_fn future_queue run_thread running",
    PyDatasetAdapter: "enqueuer",
    TFEpochIterator: "_enumerate_iterator _interrupted_warning catch_stop_iteration",
}


def _names_in(kind: type) -> Iterator[str]:
    """Yield the names of a class's attributes, and those in its methods, as `__init__` sets some."""
    for owner in kind.__mro__:
        for name, value in vars(owner).items():
            yield name
            function = inspect.unwrap(value) if callable(value) else value
            yield from getattr(getattr(function, "__code__", None), "co_names", ())


def _require_all() -> None:
    """Raise an ImportError that lists the names that this Keras lacks, if there are any."""
    for kind, attributes in _ATTRIBUTES.items():
        if kind is not None:  # or it is missing itself
            present = set(_names_in(kind))
            absent = [name for name in attributes.split() if name not in present]
            _missing.extend(f"{kind.__module__}.{kind.__qualname__}.{name}" for name in absent)
    if _missing:
        raise ImportError(
            f"this overlap_train does not work with Keras {keras.__version__}, which has no "
            f"{', no '.join(_missing)}; `pip check` names the versions that it works with"
        )


_require_all()
