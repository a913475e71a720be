"""From `fit`'s `validation_data` to the suite that evaluates it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train import arguments
from overlap_train.data.preprocessing import Preprocess
from overlap_train.data.shards import make_batches
from overlap_train.parallel.hosts import Alone
from overlap_train.records import Span
from overlap_train.snapshot import ModelState
from overlap_train.validation.evaluation import SnapshotEvaluator
from overlap_train.validation.policy import ValidationPolicy, ValidationSet
from overlap_train.validation.pool import WorkerPool
from overlap_train.validation.runner import ValidationRunner
from overlap_train.validation.suite import NamedRunner, ValidationSuite

__all__ = ["build_suite", "named_sets"]


def named_sets(validation_data: Any, default: ValidationSet) -> dict[str, ValidationSet]:
    """Returns the validation sets by name; a single one has the name "".

    A dict means several sets if each value could be a `validation_data` of its own: a tuple, a dataset, a
    generator or a `ValidationSet`. A dict of arrays is one set's inputs by name, as in Keras.

    Args:
        validation_data: as `fit` got it; None is no set at all.
        default: frequency, steps and batch size where a set does not say.

    Raises:
        TypeError: if a set's name is not a string, or a set is None.
        ValueError: if a set's name is empty, or its frequency cannot be meant.
    """
    if validation_data is None:
        return {}
    _refuse_missing(validation_data)
    if not isinstance(validation_data, dict) or not all(map(_is_set, validation_data.values())):
        return {"": _with_data(default, validation_data)}
    if not validation_data:
        raise ValueError("validation_data is an empty dict; pass at least one set, or None")
    sets = {}
    for name, data in validation_data.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of validation sets must be strings; got {name!r}")
        if not name:
            raise ValueError("the name of a validation set must not be empty")
        sets[name] = data if isinstance(data, ValidationSet) else _with_data(default, data)
        arguments.epoch_selector(sets[name].freq)
    return sets


def build_suite(
    model: keras.Model,
    state: Callable[[Any], ModelState],
    step: Callable[[Any], Mapping[str, Any]],
    sets: Mapping[str, ValidationSet],
    policy: ValidationPolicy,
    *,
    batch_by_batch: bool,
    on_span: Callable[[Span], None],
    resources: contextlib.ExitStack,
    preprocess: Preprocess | None = None,
    most_rows: Callable[[Any], int] | None = None,
    devices: Sequence[str] = (),
    hosts: Alone | None = None,
) -> ValidationSuite:
    """Builds the evaluators of all sets and starts the workers, which `resources` will end.

    Args:
        model: compiled.
        state: returns the model's variables, given the spec of a validation batch to build them by.
        step: the validation step.
        sets: by name.
        policy: how the validation runs.
        batch_by_batch: report the metrics after each batch too.
        on_span: called, on the worker, with each span of work.
        resources: closes what is opened here.
        preprocess: prepares a batch.
        most_rows: returns how many rows of nested arrays may be evaluated as one batch.
        devices: that the workers take in turn; none leaves them where TensorFlow puts them.
        hosts: that share each validation.

    Raises:
        ValueError: if there is no such device.
    """
    _require_devices(devices)
    runners, prepared, pool = [], [], None
    for name, validation_set in sets.items():
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(validation_set.data)
        batches = make_batches(
            x,
            y,
            sample_weight,
            batch_size=validation_set.batch_size,
            steps=validation_set.steps,
            cache_bytes=policy.cache_bytes,
            preprocess=preprocess,
            most_rows=most_rows,
            device="CPU:0" if devices else None,  # each of them gets its own copy
        )
        evaluator = SnapshotEvaluator(
            model, state(batches.element_spec), step, batches, batch_by_batch=batch_by_batch
        )
        prepared.append((name, validation_set, batches, evaluator))
    if prepared:
        pool = resources.enter_context(WorkerPool(_workers(policy, [p[2:] for p in prepared])))
        for name, validation_set, batches, evaluator in prepared:
            runner = ValidationRunner(evaluator, batches, pool, on_span, devices=devices, hosts=hosts)
            runners.append(NamedRunner(name, runner, arguments.epoch_selector(validation_set.freq)))
    beside = pool if not devices and not tf.config.list_logical_devices("GPU") else None
    suite = ValidationSuite(runners, on_error=policy.on_error, hosts=hosts, pool=beside)
    resources.callback(suite.close)
    return suite


def _workers(policy: ValidationPolicy, prepared: Sequence[tuple[Any, SnapshotEvaluator]]) -> int:
    """Returns how many threads the sets can keep busy at most."""
    useful = 0
    for batches, evaluator in prepared:
        most = policy.resolved_workers if batches.num_batches is None else batches.num_batches
        useful += 1 if evaluator.indivisible else most
    return min(policy.resolved_workers, useful)


def _require_devices(devices: Sequence[str]) -> None:
    known = [device.name for device in tf.config.list_logical_devices()] if devices else []
    short = [name.split("device:")[-1] for name in known]
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        if f"{spec.device_type}:{spec.device_index or 0}" not in short:
            raise ValueError(f"there is no device {device!r}; TensorFlow has {', '.join(short)}")


def _with_data(default: ValidationSet, data: Any) -> ValidationSet:
    return ValidationSet(data=data, freq=default.freq, steps=default.steps, batch_size=default.batch_size)


def _refuse_missing(validation_data: Any) -> None:
    """Raises TypeError if the data of one of several sets is None."""
    if not isinstance(validation_data, dict) or not all(
        d is None or _is_set(d) for d in validation_data.values()
    ):
        return
    for name, data in validation_data.items():
        if (data.data if isinstance(data, ValidationSet) else data) is None:
            raise TypeError(f"validation_data[{name!r}] is None; leave this set out, or pass its data")


def _is_set(value: Any) -> bool:
    kinds = (tuple, ValidationSet, tf.data.Dataset, keras.utils.PyDataset)
    return isinstance(value, kinds) or hasattr(value, "__next__")
