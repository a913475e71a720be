"""What a thread takes over from another, and the process in which TensorFlow cannot run."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import forks
from overlap_train._keras.copies import set_thread_settings, thread_settings


class Mine(keras.layers.Layer):
    pass


def settings_here():
    return {
        "policy": keras.config.dtype_policy().name,
        "interactive": keras.config.is_interactive_logging_enabled(),
        "filtered": keras.config.is_traceback_filtering_enabled(),
        "flash": keras.config.is_flash_attention_enabled(),
        "mine": keras.saving.get_registered_object("Mine"),
    }


def on_a_thread(settings):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (settings_here(), set_thread_settings(settings), settings_here())).result(
            60
        )[::2]


@pytest.fixture
def set_here():
    flash = keras.config.is_flash_attention_enabled()
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.disable_interactive_logging()
    keras.config.disable_traceback_filtering()
    keras.config.disable_flash_attention()
    with keras.saving.custom_object_scope({"Mine": Mine}):
        yield
    keras.config.set_dtype_policy("float32")
    keras.config.enable_interactive_logging()
    keras.config.enable_traceback_filtering()
    set_thread_settings({"flash_attention": flash})


@pytest.mark.usefixtures("set_here")
def test_another_thread_has_those_of_keras_s_start_until_it_is_given_ours():
    """custom_objects_scope_dict, dtype_policy, flash_attention, interactive_logging, traceback_filtering."""
    before, after = on_a_thread(thread_settings())
    assert after == settings_here()
    assert all(before[name] != after[name] for name in after)


def test_a_scope_that_is_left_later_was_open_when_it_was_taken():
    before, after = on_a_thread(thread_settings())
    assert after == before, "what has not been set is Keras's default"
    with keras.saving.custom_object_scope({"Mine": Mine}):
        settings = thread_settings()
    assert on_a_thread(settings)[1]["mine"] is Mine
    assert settings_here()["mine"] is None


@pytest.mark.parametrize("used", [True, False])
def test_a_fork_of_one_that_had_used_it_is_refused(monkeypatch, used):
    tf.constant(1)
    assert forks._is_running()
    assert forks._parent is None
    forks.require_runtime()
    monkeypatch.setattr(forks, "_parent", None)
    monkeypatch.setattr(forks, "_is_running", lambda: used)
    forks._note_fork()
    if not used:
        forks.require_runtime()
        return
    with pytest.raises(RuntimeError, match=rf"forked from process {os.getppid()} after that had used"):
        forks.require_runtime()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_does_not_end_the_iterators_of_its_parent():
    """Their end would run Python on a thread of TensorFlow's, which the fork does not have."""
    data = tf.data.Dataset.from_generator(lambda: iter("ab"), output_signature=tf.TensorSpec([], tf.string))
    gc.collect()
    gc.disable()
    garbage = [iter(data)]
    next(garbage[0])
    garbage.append(garbage)
    del garbage
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        gc.collect()
        os._exit(0)
    gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.get_freeze_count() == 0, "the parent collects again"
