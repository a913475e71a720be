"""What is known of Python's own functions, and of the methods of models, by their names."""

from __future__ import annotations

from typing import Any

from overlap_train._callbacks.doings import Doing

__all__ = [
    "ASKED",
    "LEAVES",
    "MEASURES",
    "PASSES",
    "PLAIN_SPECIAL",
    "PURE_METHODS",
    "READING",
    "STANDARD_APART",
    "STANDARD_LOOKS",
]

# Of Python's own functions and types: those that give numbers or text, even of a part of the model.
MEASURES = frozenset(
    {
        abs,
        bool,
        callable,
        divmod,
        float,
        format,
        hasattr,
        id,
        int,
        isinstance,
        issubclass,
        len,
        repr,
        round,
        str,
    }
)
# What these ask of their arguments, where it may be code of the user's.
ASKED: dict[Any, tuple[str, ...]] = {
    **{
        kind: (f"__{kind.__name__}__", "__index__", "__str__", "__repr__") for kind in (float, int, str, repr)
    },
    **{kind: (f"__{kind.__name__}__",) for kind in (abs, divmod, format, len, round)},
    bool: ("__bool__", "__len__"),
    hasattr: ("__getattr__", "__getattribute__"),
}
# And those that give what they are given, in another order or container.
PASSES = frozenset(
    {all, any, dict, enumerate, frozenset, iter, list, max, min, next, range, reversed, set, sorted, sum}
    | {tuple, zip}
)
STANDARD_APART = frozenset(
    {
        "_csv",
        "_io",
        "_json",
        "cmath",
        "collections",
        "contextlib",
        "copy",
        "csv",
        "io",
        "json",
        "logging",
        "math",
        "numbers",
    }
    | {"operator", "posixpath", "statistics", "string", "textwrap", "warnings", "_warnings", "_operator"}
    | {"_collections", "genericpath", "pathlib"}
)
STANDARD_LOOKS = {
    **dict.fromkeys(("datetime", "time"), Doing.TIMES),
    **dict.fromkeys(("os", "posix", "shutil", "tempfile"), Doing.LOOKS),
}
# What reads a model and leaves it as it is, with whether a number, a text or an array comes back.
READING = {
    **dict.fromkeys(
        ("count_params", "get_config", "get_weights", "item", "numpy", "save", "save_weights"), True
    ),
    **dict.fromkeys(("get", "get_layer", "items", "keys", "values"), False),
    **dict.fromkeys(("summary", "to_json"), True),
}
LEAVES = frozenset(
    {"__module__", "__name__", "__qualname__", "built", "distribute_strategy", "dtype", "metrics_names"}
    | {"name", "path", "shape"}
)
# Special names that do not lead from data to the code that has made it, as the traceback of an error would.
PLAIN_SPECIAL = frozenset(
    {"__class__", "__contains__", "__doc__", "__getitem__", "__len__", "__module__", "__name__"}
    | {"__qualname__", "__setitem__", "__version__"}
)
PURE_METHODS = frozenset({"copy", "format", "get", "items", "join", "keys", "lower", "split", "values"})
