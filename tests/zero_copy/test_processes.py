"""In other interpreters: exit, fork and spawn with live buffers; no array or buffer aborts one."""

import subprocess
import sys

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlap_train import zero_copy
from tests import interpreters
from tests.zero_copy.conftest import WITHOUT_GPU

EXIT = """
import threading
import numpy as np, tensorflow as tf
from overlap_train import zero_copy
buffer = zero_copy.MappedBuffer(1000)
buffer.numpy()[...] = 1
tensor = buffer.tensor()
shared = zero_copy.as_tensor(zero_copy.empty(1000))
copied = zero_copy.as_tensor(np.ones(7)[::2])
variable = tf.Variable(shared)
total = tf.function(lambda: tf.reduce_sum(tensor) + variable[0])
total()
cycle = [buffer, tensor]; cycle.append(cycle)
tf._kept_to_the_very_end = (tensor, shared, zero_copy.as_array(tensor), total)
def forever():
    while True:
        total(); zero_copy.as_tensor(zero_copy.empty(1000)); zero_copy.MappedBuffer(100).tensor()
threading.Thread(target=forever, daemon=True).start()
print("end of script")
"""


def test_interpreter_ends_with_live_buffers_and_a_thread_that_makes_more():
    command = [sys.executable, "-c", EXIT]
    done = subprocess.run(command, timeout=120, env=WITHOUT_GPU, check=True, capture_output=True, text=True)
    assert "end of script" in done.stdout


def fill(queue, count):
    buffer = zero_copy.MappedBuffer(count, "int64")
    buffer.numpy()[...] = np.arange(count)
    queue.put(int(zero_copy.as_array(buffer.tensor()).sum()))


def test_spawned_process_has_buffers_of_its_own():
    context = interpreters.forkserver()
    queue = context.SimpleQueue()
    process = context.Process(target=fill, args=(queue, 100))
    process.start()
    assert queue.get() == 4950
    process.join()
    assert process.exitcode == 0


NAMES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G", "S3"),
    *("U3", "O", "M8[s]", "m8[ms]", "V5", "V0", "S0"),
]

CASE = r"""
kind, order, shape, offset, steps, axes, cut, frozen, mode = case
dtype = np.dtype(kind).newbyteorder(order)
count = int(np.prod(shape, dtype=object))
if dtype.hasobject:
    values = [["a", b"b", 1, None, {}][i % 5] for i in range(count)] + [None]
    array = np.array(values, object)[:count].reshape(shape)
else:
    raw = zero_copy.empty(count * dtype.itemsize + 512, np.uint8)
    raw[...] = 1
    array = np.ndarray(shape, dtype, raw, offset)
array = array[(..., *(slice(None, None, step) for step in steps))]
array = array.transpose(np.argsort(axes[: array.ndim], kind="stable"))
if cut and array.ndim:
    array = array[cut:]
if frozen:
    array.flags.writeable = False
try:
    tensor = zero_copy.as_tensor(array, mode=mode)
except (TypeError, ValueError, errors.BufferError) as error:
    assert str(error), "a refusal must say its reason"
    result = "refused"
else:
    assert tensor.shape == array.shape, (tensor.shape, array.shape)
    if array.dtype.kind in "?iufc":
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.dtype.as_numpy_dtype == array.dtype.newbyteorder("=")
        tf.reduce_any(tf.equal(tensor, tensor)).numpy()
    tf.identity(tf.reshape(tensor, [-1])).numpy()
    result = "tensor"
"""


@st.composite
def arrays(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=5)))
    return (
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from("=<>")),
        shape,
        draw(st.one_of(st.sampled_from([0, 64, 16, 8]), st.integers(0, 300))),
        tuple(draw(st.sampled_from([1, 1, 2, -1])) for _ in shape),
        draw(st.permutations(range(5))),
        draw(st.sampled_from([0, 0, 1])),
        draw(st.booleans()),
        draw(st.sampled_from(["auto", "zero_copy", "copy"])),
    )


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(arrays(), min_size=10, max_size=10))
def test_any_array_becomes_a_right_tensor_or_is_refused_with_its_reason(cases, drawn):
    outcomes = cases.results(CASE, [{"case": case} for case in drawn])
    for (kind, *_, mode), outcome in zip(drawn, outcomes, strict=True):
        if np.dtype(kind).kind in "?biufc" and kind not in "gG" and mode != "zero_copy":
            assert outcome == "tensor"


def test_an_abort_is_seen(cases):
    """The tests above can fail: DLPack's own entrance takes a misaligned array, and the operation aborts."""
    code = (
        "x = zero_copy.empty(80, np.uint8)[16:].view(np.float32)\n"
        "tf.reduce_sum(tf.experimental.dlpack.from_dlpack(x.__dlpack__()) * 2.0)\n"
    )
    assert cases.run(code, [{}])[0] == "killed"
