"""Whether a function of numbers gives the same result whenever it is called: known, or not."""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

import keras

from overlap_train._inspection.lookup import look_up
from overlap_train._keras import methods as keras_methods

__all__ = ["is_pure", "looked_up"]

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_BUILTINS = frozenset(
    vars(builtins)[name]
    for name in (
        "abs",
        "bool",
        "divmod",
        "float",
        "int",
        "len",
        "max",
        "min",
        "pow",
        "range",
        "round",
        "sum",
        "tuple",
    )
)
# What a function may do besides arithmetic on its own arguments and names.
_REFUSED = frozenset(
    [
        *("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF", "STORE_ATTR", "DELETE_ATTR"),
        *("STORE_SUBSCR", "DELETE_SUBSCR", "IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR"),
        *("YIELD_VALUE", "RETURN_GENERATOR", "SEND"),
    ]
)
_MATHEMATICS = ("math", "cmath")
_NUMPY = frozenset(
    [
        *(
            "abs",
            "ceil",
            "clip",
            "cos",
            "exp",
            "float32",
            "float64",
            "floor",
            "int32",
            "int64",
            "log",
            "log10",
        ),
        *("log2", "maximum", "minimum", "pi", "power", "sin", "sqrt", "tan", "tanh"),
    ]
)


def is_pure(function: Any) -> bool:
    """Whether a function is known to keep no state and to read none: its result follows from its arguments.

    Known are Keras's learning rate schedules, and Python functions whose code shows it: arithmetic on
    arguments, constants, numbers of the enclosing scopes, `math`, some of NumPy, and functions of the same
    kind. Whoever reads a list, an object or a variable, or writes anywhere, is not.
    """
    if isinstance(function, keras.optimizers.schedules.LearningRateSchedule):
        return keras_methods.is_stock_method(type(function).__call__)
    if isinstance(function, types.MethodType):
        return function.__name__ == "__call__" and is_pure(function.__self__)
    return isinstance(function, types.FunctionType) and _is_pure_code(function, frozenset())


def looked_up(function: Any) -> tuple[str, ...]:
    """Returns in words what a pure function finds besides its arguments, to tell whether that has changed."""
    if isinstance(function, types.MethodType):
        return looked_up(function.__self__)
    if not isinstance(function, types.FunctionType):
        return (repr(sorted(vars(function).items(), key=str)) if hasattr(function, "__dict__") else "",)
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    cells = [look_up(cell, "") for cell in function.__closure__ or ()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    values = [value for value in (*named, *cells, *defaults) if value is not function]
    functions = [value for value in values if isinstance(value, types.FunctionType)]
    numbers = [repr(value) for value in values if not isinstance(value, types.FunctionType)]
    return (repr(function.__code__), *numbers, *(text for inner in functions for text in looked_up(inner)))


def _is_pure_code(function: types.FunctionType, above: frozenset[types.CodeType]) -> bool:
    code = function.__code__
    if code in above:
        return True
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    cells = [look_up(cell, "") for cell in function.__closure__ or ()]
    if not all(_is_constant(value, above | {code}) for value in (*defaults, *cells)):
        return False
    if not all(_is_constant(value, above) for value in code.co_consts):
        return False
    owner: Any = None  # of the attribute that may be asked for next
    for instruction in dis.get_instructions(code):
        if instruction.opname in _REFUSED:
            return False
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            owner = function.__globals__.get(instruction.argval, vars(builtins).get(instruction.argval))
            if not (_is_module(owner) or _is_constant(owner, above | {code})):
                return False
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if not _is_module(owner) or not _is_known_of(owner, instruction.argval):
                return False
            owner = None
        elif instruction.opname not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG"):
            owner = None
    return True


def _is_constant(value: Any, above: frozenset[types.CodeType]) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_is_constant(part, above) for part in value)
    if isinstance(value, types.FunctionType):
        return _is_pure_code(value, above)
    if isinstance(value, types.BuiltinFunctionType):
        return value in _BUILTINS or value.__module__ in _MATHEMATICS
    if isinstance(value, type):
        return value in _BUILTINS
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return is_pure(value)
    return type(value) in _NUMBERS


def _is_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and value.__name__ in (*_MATHEMATICS, "numpy")


def _is_known_of(module: types.ModuleType, name: str) -> bool:
    return module.__name__ in _MATHEMATICS or name in _NUMPY
