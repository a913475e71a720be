"""Hooks that change the training along a way that is easily overlooked."""

import dataclasses
import enum
import io
import logging

import keras
import numpy as np

Callback = keras.callbacks.Callback
MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def act(*_, **__):
    MODEL.trainable = False


class Thing:
    """Acts when it is asked for a property or a sign."""

    def act(self, *_):
        act()
        return 1

    shown = property(act)
    __neg__ = __invert__ = __pos__ = act


class Made:
    def __init__(self, *_):
        act()


class ActsWhenMade(Exception):
    def __init__(self, *_):
        act()


class Asked(type):
    def __instancecheck__(cls, thing):
        return bool(act())

    __subclasscheck__ = __instancecheck__


class AskedKind(metaclass=Asked):
    pass


class Handler(logging.Handler):
    def emit(self, record):
        act()


class Raw(io.RawIOBase):
    def write(self, data):
        act()
        return len(data)

    def writable(self):
        return True


@dataclasses.dataclass(slots=True)
class Slotted:
    every: object = None


class Level(int):
    """A number whose comparison is code of the user's."""

    def __gt__(self, other):
        act()
        return True


class Named(enum.IntEnum):
    FIRST = 1

    def act(self):
        act()


def applied(function):
    act()
    return function


VECTORIZED = np.vectorize(act)
LEVEL = Level(3)
LOGGER = logging.getLogger("hostile")
LOGGER.addHandler(Handler())
LOGGER.propagate = False


class Ways:
    """Hooks of batches, by the way on which they reach the training."""

    def a_decorator_is_called(self, batch, logs=None):
        @applied
        def inner(): ...

    def an_error_s_class_acts(self, batch, logs=None):
        self.error = ActsWhenMade("x")

    def a_place_is_computed(self, batch, logs=None):
        self.kept[act()] = 1

    def a_sign_is_asked_for(self, batch, logs=None):
        self.kept.append(-self.thing)

    def a_property_is_looked_for(self, batch, logs=None):
        self.kept.append(hasattr(self.thing, "shown"))

    def a_slot_is_no_setting_of_the_class(self, batch, logs=None):
        if self.slotted.every is not None:
            return
        act()

    def a_class_is_a_key(self, batch, logs=None):
        self.kept.append(sorted([2, 1], key=Made))

    def a_metaclass_is_asked(self, batch, logs=None):
        self.kept.append(isinstance(batch, AskedKind))

    def numpy_calls_a_function(self, batch, logs=None):
        self.kept.append(VECTORIZED([batch]))

    def a_logger_has_a_handler(self, batch, logs=None):
        LOGGER.warning("batch %s", batch)

    def a_file_writes_to_an_object(self, batch, logs=None):
        self.file.write(b"x")

    def a_missing_key_is_made(self, batch, logs=None):
        self.kept.append(self.making[batch])

    def the_class_of_the_model_is_changed(self, batch, logs=None):
        self.model.__class__.train_step = batch

    def a_number_is_compared(self, batch, logs=None):
        self.kept.append(batch < LEVEL)

    def a_number_of_an_enumeration_acts(self, batch, logs=None):
        Named.FIRST.act()

    def numbers_are_sorted(self, batch, logs=None):
        self.numbers.sort()

    def an_error_leads_to_its_frame(self, batch, logs=None):
        try:
            logs["missing"]
        except KeyError as error:
            error.__traceback__.tb_frame.f_locals["self"].model.trainable = False

    def the_parameters_hold_a_function(self, batch, logs=None):
        self.params["act"](batch)


HOSTILE = {name: hook for name, hook in vars(Ways).items() if not name.startswith("_")}
