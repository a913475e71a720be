"""Interpreter exit, fork and spawn with live buffers."""

import numpy as np

from overlap_train import zero_copy
from tests import interpreters

EXIT = """
import threading
import numpy as np, tensorflow as tf
from overlap_train import zero_copy
from tests import interpreters
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


def test_interpreter_ends_with_live_buffers_and_a_thread_that_makes_more(run_python):
    assert "end of script" in run_python(EXIT)


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


def test_forked_process_may_write_its_own_copy_and_allocate(cases):
    code = """
import os
buffer = zero_copy.MappedBuffer(100, backend="host")
buffer.numpy()[...] = 1
pool = zero_copy.shared_pool("host")
pool._lock.acquire()  # as if another thread were inside at the moment of the fork
child = os.fork()
if child == 0:
    array = buffer.numpy()
    array[...] = 2
    other = zero_copy.MappedBuffer(50, backend="host")
    other.numpy()[...] = 3
    del other, array
    os._exit(7)
pool._lock.release()
_, status = os.waitpid(child, 0)
result = (os.waitstatus_to_exitcode(status), float(zero_copy.as_array(buffer.tensor()).sum()))
"""
    assert cases.result(code) == (7, 100.0)
