"""What a step does that no variable keeps, so that no snapshot holds it and no rollback undoes it.

That includes the lookup tables that it reads, if their content can change.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from overlap_train._inspection.graph import handle_spec, nested_operations, outer_operations, signatures_of

__all__ = ["KINDS", "Effect", "find_effects", "find_tables", "is_kept"]


@dataclass(frozen=True)
class Effect:
    """Something that a step does besides computing from tensors and variables."""

    operation: str
    where: str  # the operation's name, whose first parts are those of the layers, and the line of the program
    what: str
    remedy: str

    @property
    def only_tells(self) -> bool:
        """Whether it only hands something out, on which no later step depends."""
        return re.match(r"Write|Print|StringFormat|Save", self.operation) is not None

    @property
    def done(self) -> str:
        """What it does, and where."""
        return f"{self.what} ({self.operation} in {self.where})"

    def __str__(self) -> str:
        return f"{self.done}; {self.remedy}"


# The first pattern that the beginning of an operation's type fits says what it does and what to do instead.
KINDS: tuple[tuple[str, str, str], ...] = (
    (
        r"Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|.*CandidateSampler|.*UnigramSampler",
        "draws random numbers whose state no snapshot holds",
        "draw with keras.random and a keras.random.SeedGenerator",
    ),
    (
        r".*PyFunc",
        "runs Python",
        "compute it with TensorFlow, or keep what it counts in a variable (add_weight)",
    ),
    (r"Write.*Summary", "writes a summary", "write it in a callback's on_epoch_end"),
    (r"Print|StringFormat", "prints", "print in a callback"),
    (r".*(Lookup|Hash)Table|InitializeTable", "changes a table", "keep it in a variable (add_weight)"),
    (r".*Iterator|.*Dataset", "draws from a dataset of its own", "make that data part of the batches"),
    (r"Write|Save|.*Queue|.*Barrier", "writes outside the program", "write it in a callback"),
    (
        r"",
        "runs a stateful operation of which nothing is known",
        'keep its state in a variable, or accept the lag: ValidationPolicy(on_change="continue")',
    ),
)

# Stateful for TensorFlow, but either a snapshot holds what they change, or they change nothing that lasts.
_KEPT = re.compile(
    r"(Stateful)?PartitionedCall|(Stateless)?(While|If|Case)|RemoteCall|SymbolicGradient|XlaLaunch.*"
    r"|VarHandleOp|ReadVariableOp|_?.*VariablesOp|VarIsInitializedOp|IsVariableInitialized|VariableShape"
    r"|Assign.*VariableOp|DestroyResourceOp"
    r"|Resource(Gather|Scatter|Apply|SparseApply|StridedSlice|Accumulator|CountUpTo).*"
    r"|Rng(ReadAndSkip|Skip)|Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial).*"
    r"|Assert|CheckNumerics.*|Debug(Identity|NumericSummary).*|NoOp|EnsureShape|StopGradient|PreventGradient"
    r"|LookupTable(Find|Size|Export).*|(Anonymous)?(Mutable)?HashTable(V2)?|StaticHashTable.*"
    r"|TensorArray.*|TensorList.*|Stack.*V2|Empty|EmptyTensorList|Collective.*|Nccl.*|Broadcast.*|ConfigureDistributed.*"
    # Keras gives cuDNN's recurrent layers no dropout, and without it they keep nothing.
    r"|CudnnRNN.*"
    r"|_?(Arg|Retval|Send|Recv|HostSend|HostRecv)|Placeholder.*|Const|FakeParam|Overlap.*"
)

# So the names of operations begin that this library itself puts into a step, as the clock of slow hosts.
_OWN = "overlap_train_"


def find_effects(graph: Any) -> tuple[Effect, ...]:
    """Returns what the operations of a traced graph do besides, one for each type and place."""
    found: dict[tuple[str, str], Effect] = {}
    outer: dict[str, Any] | None = None
    for kind, name, runs in nested_operations(graph):
        if is_kept(kind) or name.rpartition("/")[2].startswith(_OWN):
            continue
        if isinstance(runs, str):
            outer = outer_operations(graph) if outer is None else outer
            runs = outer.get(runs)
            name = f"{runs.name}/{name}" if runs is not None else name
        where = _place(name, runs)
        what, remedy = next((what, remedy) for pattern, what, remedy in KINDS if re.match(pattern, kind))
        found.setdefault((kind, where), Effect(kind, where, what, remedy))
    return tuple(found.values())


def is_kept(kind: str) -> bool:
    """Whether an operation of a type changes nothing that lasts, or only what a snapshot holds."""
    return not _is_stateful(kind) or _KEPT.fullmatch(kind) is not None


def _is_stateful(kind: str) -> bool:
    definition = op_def_registry.get(kind)
    if definition is None:
        return not kind.startswith("__")  # a call of a function, whose own operations are looked at
    return bool(definition.is_stateful)


def _place(name: str, operation: Any) -> str:
    """Returns an operation's name, and the innermost line of the program that is no library's."""
    frames = list(operation.traceback) if operation is not None else []
    for frame in reversed(frames):
        if not frame.filename.startswith(_LIBRARIES) and not frame.filename.startswith("<"):
            return f"{name!r}, {Path(frame.filename).name}:{frame.lineno}, {frame.name}"
    return repr(name)


_LIBRARIES = tuple(
    {
        *(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")),
        str(Path(__file__).resolve().parents[1]),
        str(Path(sys.modules["tensorflow"].__file__ or "").parents[1]),
    }
)


def find_tables(concrete: Any) -> tuple[Effect, ...]:
    """Returns an effect for each table that a concrete function captured and that entries can be put into.

    TensorFlow tells no kind of table from another by its handle, so each is asked to take no entry at all:
    one that is made for good, as `tf.lookup.StaticHashTable` and the vocabulary of a layer, refuses.
    """
    signatures = sorted(signatures_of(concrete.graph, "LookupTableFind", ("Tin", "Tout")))
    handles = {
        id(tensor): tensor
        for tensor in concrete.captured_inputs
        if tensor.dtype == tf.resource and handle_spec(tensor) is None and hasattr(tensor, "numpy")
    }
    if not signatures:
        return ()
    return tuple(
        Effect(
            "LookupTableFind",
            f"table {number}",
            "reads a table that a callback may change",
            "read a tf.lookup.StaticHashTable, or keep the values in a variable (add_weight)",
        )
        for number, handle in enumerate(handles.values())
        if any(_takes_entries(handle, *dtypes) for dtypes in signatures)
    )


def _takes_entries(table: Any, keys: int, values: int) -> bool:
    with tf.init_scope():
        try:
            tf.raw_ops.LookupTableInsertV2(
                table_handle=table,
                keys=tf.constant([], tf.as_dtype(keys)),
                values=tf.constant([], tf.as_dtype(values)),
            )
        except tf.errors.InvalidArgumentError as error:
            # A table of vectors would take other values; anything else is no table, or one of other types.
            return "Expected shape" in str(error)
        except tf.errors.OpError:
            return False
    return True
