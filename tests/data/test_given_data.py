"""Validation data is known by its layout, and read when it is asked for."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from overlap_train._data.validation_data import GivenData
from overlap_train._keras.data import recognize
from tests.data.batches import X, Y, dataset


def given(*data, **options):
    return GivenData(lambda: recognize(*data, role="validation"), now=False, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "object"])
def test_rows_are_read_when_they_are_asked_for_and_once(dtype):
    x = X[:, 0].astype("str").astype(dtype) if dtype == "object" else X.astype(dtype)
    data = given(x, Y)
    assert not data.waits
    assert not data.is_read
    x[0] = x[1]
    assert data.read()
    read = [np.asarray(tensor) for tensor in data.tensors]
    np.testing.assert_array_equal(read[0][0], read[0][1])
    assert [tuple(spec.shape) for spec in data.layout.specs] == [array.shape for array in read]
    assert [spec.dtype for spec in data.layout.specs] == [tensor.dtype for tensor in data.tensors]
    assert [(spec.shape[0], spec.dtype) for spec in data.blank()] == [(0, t.dtype) for t in data.tensors]
    x[0] = x[2]
    np.testing.assert_array_equal(np.asarray(data.tensors[0]), read[0])
    data.forget()
    assert not np.array_equal(np.asarray(data.tensors[0]), read[0])


def test_other_shapes_than_were_known_are_told():
    inputs = {"x": X}
    data = given(inputs, Y)
    inputs["x"] = X[:, :1]
    assert not data.read()
    assert data.layout.specs[0]["x"].shape == [13, 1]
    data = given(inputs, Y)
    inputs["x"] = X
    with pytest.raises(ValueError, match="other shapes"):
        _ = data.tensors


def test_what_python_makes_and_sparse_arrays_wait():
    drawn = []

    def batches():
        while True:
            drawn.append(1)
            yield X, Y

    data = given(batches(), by_python=True)
    assert data.waits
    assert not drawn
    assert not data.read()
    assert drawn
    assert not data.waits
    assert data.read()
    assert given(scipy.sparse.csr_matrix(X), Y).waits
    assert not given(dataset()).waits


def test_mismatched_arrays_are_refused_before_they_are_read():
    with pytest.raises(ValueError, match="cardinality"):
        given(X, Y[:3])


def test_pandas_and_tensors_are_read_late_too():
    pd = pytest.importorskip("pandas", reason="lacks pandas")
    frame = pd.DataFrame(X.copy())
    data = given(frame, tf.constant(Y))
    frame.iloc[0, 0] = 7.0
    assert float(data.tensors[0][0, 0]) == 7
    assert keras.tree.flatten(data.layout.specs)[1].dtype == tf.int64
