"""Arrays lent to TensorFlow and tensors lent to NumPy; shapes, dtypes and devices as users pass them."""

import gc
import logging
import weakref

import numpy as np
import psutil
import pytest
import tensorflow as tf

from overlap_train import errors, zero_copy
from overlap_train.zero_copy import dlpack
from tests import interpreters
from tests.zero_copy.conftest import WITHOUT_GPU, address

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *("float64", "complex64", "complex128"),
]


def aligned(shape, dtype=np.float32, behind=0):
    """An array that begins `behind` bytes behind a multiple of 256."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return zero_copy.empty(size + behind, np.uint8)[behind:].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_array_and_tensor_have_one_address_both_ways(dtype):
    array = zero_copy.empty((3, 5), tf.as_dtype(dtype).as_numpy_dtype)
    array[...] = np.arange(15).reshape(3, 5) % 2
    tensor = zero_copy.as_tensor(array, mode="zero_copy")
    assert tensor.dtype == tf.as_dtype(dtype)
    assert tensor.shape == (3, 5)
    back = zero_copy.as_array(tensor)
    assert address(back) == address(array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_sharing_copies_no_byte_and_a_function_may_capture_what_is_shared():
    array = aligned(64 << 20, np.uint8)
    array[...] = 1
    before, resident = zero_copy.statistics(), psutil.Process().memory_info().rss
    tensors = [zero_copy.as_tensor(array) for _ in range(8)]
    after = zero_copy.statistics()
    assert (after.shared - before.shared, after.copied_bytes - before.copied_bytes) == (8, 0)
    assert psutil.Process().memory_info().rss - resident < array.nbytes
    captured = tf.function(lambda: tensors[0][12345])
    assert int(captured()) == 1
    array[12345] = 7
    assert int(captured()) == 7
    assert all(int(tensor[12345]) == 7 for tensor in tensors)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: aligned((4, 4), behind=16), "16 bytes behind a multiple of the 64"),
        (lambda: aligned((4, 4), behind=1), "1 bytes behind"),
        (lambda: aligned((4, 4))[:, ::2], "not C-contiguous"),
        (lambda: aligned((4, 4))[::-1], "not C-contiguous"),
        (lambda: aligned((4, 4)).T, "not C-contiguous"),
        (lambda: np.broadcast_to(aligned(4), (3, 4)), "not C-contiguous"),
        (lambda: aligned((4, 4), ">f4"), "byte order"),
        (lambda: aligned((0, 4)), "no elements"),
        (lambda: np.array(["a", "bc"]), "by DLPack"),
        (lambda: np.zeros(3, tf.bfloat16.as_numpy_dtype), "by DLPack"),
    ],
)
def test_what_cannot_be_shared_is_copied_with_its_reason(make, reason, caplog):
    array = make()
    if array.dtype.kind == "f" and array.flags.writeable:
        array[...] = np.random.default_rng(0).normal(size=array.shape)
    choice = zero_copy.explain(array)
    assert not choice.zero_copy
    assert reason in choice.reason
    before = zero_copy.statistics()
    with caplog.at_level(logging.INFO, logger="overlap_train"):
        tensor = zero_copy.as_tensor(array)
    assert reason in caplog.text
    after = zero_copy.statistics()
    assert (after.copied - before.copied, after.copied_bytes - before.copied_bytes) == (1, array.nbytes)
    assert tensor.shape == array.shape
    expected = array if array.dtype.kind != "U" else array.astype("S")
    np.testing.assert_array_equal(tensor.numpy().astype(expected.dtype), expected)
    with pytest.raises(errors.BufferError, match=r"cannot share .*zero_copy\.MappedBuffer"):
        zero_copy.as_tensor(array, mode="zero_copy")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([1, 2], "numpy.asarray"),
        (None, "NoneType"),
        (np.ma.masked_array([1, 2], [0, 1]), "masked"),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), "structured"),
        (np.array([{}, object()]), "cannot become a tensor"),
        (np.zeros(2, "datetime64[s]"), "cannot become a tensor"),
        (np.zeros(2, np.longdouble), "cannot become a tensor"),
        (np.zeros(2, "V7"), "cannot become a tensor"),
    ],
)
def test_what_tensorflow_cannot_hold_is_refused(value, match):
    with pytest.raises(TypeError, match=match):
        zero_copy.as_tensor(value)


@pytest.mark.cpu_only("what a GPU computes of a tensor shares no memory with it")
def test_array_lives_as_long_as_anything_that_tensorflow_derived():
    class Owner(np.ndarray):
        pass

    array = aligned(16).view(Owner)
    array[...] = 5
    watch = weakref.ref(array)
    tensor = zero_copy.as_tensor(array)
    del array
    derived = tf.reshape(tensor, [4, 4])
    del tensor
    shown = zero_copy.as_array(derived)
    del derived
    dataset = tf.data.Dataset.from_tensors(zero_copy.as_tensor(shown))
    del shown
    gc.collect()
    assert watch() is not None
    assert float(next(iter(dataset))[3][3]) == 5.0
    del dataset
    gc.collect()
    assert watch() is None


def test_memory_mapped_file_is_shared_and_read_only(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4096, dtype=np.float32).reshape(64, 64))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    tensor = zero_copy.as_tensor(array, mode="zero_copy")
    assert address(zero_copy.as_array(tensor)) == address(array)
    watch = weakref.ref(array._mmap)
    del array
    gc.collect()
    assert watch() is not None
    assert float(tf.reduce_sum(tensor)) == 4096 * 4095 / 2
    del tensor
    gc.collect()
    assert watch() is None


def test_sharing_works_while_a_function_is_traced_and_with_asynchronous_operations(cases):
    code = """
array = zero_copy.empty(1024)
array[...] = 1
total = tf.function(lambda: tf.reduce_sum(zero_copy.as_tensor(array, mode="zero_copy")))
result = [float(total()), float(total())]
tf.config.experimental.set_synchronous_execution(False)
buffer = zero_copy.MappedBuffer(1024, backend="host")
for value in range(20):
    while buffer.readers:  # TensorFlow's executor lets go of an input a moment after the result is there
        pass
    buffer.numpy()[...] = value
    result.append(float(tf.reduce_sum(buffer.tensor() + 1.0)) / 1024)
"""
    assert cases.result(code) == [1024.0, 1024.0, *(float(value + 1) for value in range(20))]


# Each gives TensorFlow the only reference to the shared tensor, so that it may think the buffer its own.
WRITERS = {
    "assign_add": "v = tf.Variable(last()); v.assign_add(tf.ones_like(v))",
    "slice": "v = tf.Variable(last()); v[0].assign(tf.ones(16))",
    "scatter": """
v = tf.Variable(last())
for _ in range(3):
    v.scatter_add(tf.IndexedSlices(tf.ones((1, 16)), [3]))
""",
    "adam": """
v, m, s = tf.Variable(tf.zeros((64, 16))), tf.Variable(last()), tf.Variable(tf.zeros((64, 16)))
tf.raw_ops.ResourceApplyAdam(
    var=v.handle, m=m.handle, v=s.handle, beta1_power=.9, beta2_power=.9, lr=.1, beta1=.9, beta2=.9,
    epsilon=1e-7, grad=tf.ones((64, 16)),
)
""",
    "forwarding": "tf.function(lambda a: tf.nn.relu(tf.nn.relu(a) + 1.))(last())",
    "temporary": "tf.function(lambda a: tf.tensor_scatter_nd_update(a, [[0]], tf.ones((1, 16))))(last())",
    "while": """
body = lambda i, b: (i + 1, b + 1.)
tf.function(lambda a: tf.while_loop(lambda i, b: i < 5, body, [0, a])[1])(last())
""",
    "xla": """
v = tf.Variable(last())
tf.function(lambda: v.assign_add(tf.ones_like(v)), jit_compile=True)()
""",
}


@pytest.mark.by_default("while", "adam")
@pytest.mark.parametrize("writer", WRITERS)
def test_tensorflow_never_writes_to_memory_that_it_was_lent(cases, tmp_path, writer):
    np.save(tmp_path / "x.npy", np.zeros((64, 16), np.float32))
    code = "last = [zero_copy.as_tensor(np.load(path, mmap_mode='r'), mode='zero_copy')].pop\n"
    code += WRITERS[writer]
    assert cases.run(code, [{"path": str(tmp_path / "x.npy")}]) == ("returned", [None])


def test_writing_to_a_read_only_page_does_end_a_process(cases, tmp_path):
    """The test above can fail: a write by NumPy, through memory said to be writable, is seen as a signal."""
    np.save(tmp_path / "x.npy", np.zeros(1024, np.float32))
    code = (
        "from overlap_train.zero_copy import dlpack\n"
        "x = np.load(path, mmap_mode='r')\n"
        "dlpack.view(dlpack.Keeper(x.ctypes.data, x.shape, x.dtype, x))[0] = 1\n"
    )
    assert cases.run(code, [{"path": str(tmp_path / "x.npy")}])[0] == "killed"


ANOTHER_DEVICE = """
import numpy as np
import tensorflow as tf
from overlap_train import zero_copy

two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
rows = zero_copy.empty((3, 5))
rows[...] = 1
with tf.device("CPU:1"):  # as a GPU would be, which TensorFlow takes if nothing is said
    tensor = zero_copy.as_tensor(rows, mode="zero_copy")
    back = zero_copy.as_array(tensor)
    assert back.__array_interface__["data"][0] == rows.__array_interface__["data"][0]
    for array in (rows, rows[:, :2], np.zeros((0, 3), np.float32), np.array(["a", "b"])):
        assert zero_copy.as_tensor(array).device.endswith("CPU:0"), array
    variable = tf.Variable(tf.ones([4]))
    assert variable.device.endswith("CPU:1")
    first, second = (zero_copy.as_array(variable.value()).__array_interface__["data"][0] for _ in range(2))
    assert first == second
"""


def test_nothing_goes_to_the_device_where_operations_are_run():
    interpreters.run(["-c", ANOTHER_DEVICE], timeout=120, env=WITHOUT_GPU, check=True)


def test_a_capsule_for_the_gpu_carries_device_and_mapped_address():
    array = aligned(16).reshape(4, 4)
    keeper = dlpack.Keeper(address(array), array.shape, array.dtype, array)
    capsule = dlpack.capsule(keeper, gpu=1, address=0x1000)
    head = dlpack._Tensor.from_address(dlpack._get_pointer(capsule, b"dltensor"))
    assert (head.device.device_type, head.device.device_id, head.data) == (2, 1, 0x1000)
    assert (head.dtype.code, head.dtype.bits, head.byte_offset) == (2, 32, 0)
