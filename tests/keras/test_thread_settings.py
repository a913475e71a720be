"""What Keras keeps for each thread."""

from __future__ import annotations

import threading

import keras
import pytest

from overlap_train._keras.threads import KerasSettings


class Mine(keras.layers.Layer):
    pass


def seen():
    return {
        "policy": keras.config.dtype_policy().name,
        "interactive": keras.config.is_interactive_logging_enabled(),
        "filtered": keras.config.is_traceback_filtering_enabled(),
        "flash": keras.config.is_flash_attention_enabled(),
        "mine": keras.saving.get_registered_object("Mine"),
    }


def on_a_thread(settings):
    found = []

    def run():
        found.append(seen())
        settings.apply()
        found.append(seen())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return found


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
    KerasSettings({"flash_attention": flash}).apply()


@pytest.mark.usefixtures("set_here")
def test_another_thread_has_those_of_keras_s_start_until_it_is_given_ours():
    """custom_objects_scope_dict, dtype_policy, flash_attention, interactive_logging, traceback_filtering."""
    before, after = on_a_thread(KerasSettings.of_this_thread())
    assert after == seen()
    assert all(before[name] != after[name] for name in after)


def test_what_has_not_been_set_is_keras_s_default():
    before, after = on_a_thread(KerasSettings.of_this_thread())
    assert after == before


def test_a_scope_that_is_left_later_was_open_when_it_was_taken():
    with keras.saving.custom_object_scope({"Mine": Mine}):
        settings = KerasSettings.of_this_thread()
    assert on_a_thread(settings)[1]["mine"] is Mine
    assert seen()["mine"] is None
