"""Effects of a step that are in no variable, so that no snapshot holds them and no rollback undoes them."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow.python.framework import op_def_registry

from overlap_train._inspection.graph import nested_operations


@dataclass(frozen=True)
class Effect:
    """Something that a step does besides computing with tensors and variables."""

    operation: str
    where: str  # its name, which begins with those of the layers, and outside functions its line
    what: str
    remedy: str

    @property
    def only_tells(self) -> bool:
        """Whether it only writes something out, on which no later step depends."""
        return re.match(r"Write|Print|StringFormat|Save", self.operation) is not None

    @property
    def done(self) -> str:
        """A sentence about what it does, and where."""
        return f"{self.what} ({self.operation} in {self.where})"

    def __str__(self) -> str:
        return f"{self.done}; {self.remedy}"


# The first pattern that matches the beginning of an operation's type says what it does and the remedy.
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

# The prefix of operations that this library adds to a step, such as the clock of slow hosts.
_OWN_PREFIX = "overlap_train_"


def find_effects(graph: Any) -> tuple[Effect, ...]:
    """Return the effects of the operations in a traced graph, one for each type and place."""
    effects: dict[tuple[str, str], Effect] = {}
    for kind, name, operation in nested_operations(graph):
        if is_kept(kind) or name.rpartition("/")[2].startswith(_OWN_PREFIX):
            continue
        where = _place(name, operation)
        what, remedy = next((what, remedy) for pattern, what, remedy in KINDS if re.match(pattern, kind))
        effects.setdefault((kind, where), Effect(kind, where, what, remedy))
    return tuple(effects.values())


def is_kept(kind: str) -> bool:
    """Whether operations of a type change nothing that lasts, or only what a snapshot holds."""
    definition = op_def_registry.get(kind)
    # One without a definition calls a function, whose operations are inspected themselves.
    is_stateful = not kind.startswith("__") if definition is None else bool(definition.is_stateful)
    return not is_stateful or _KEPT.fullmatch(kind) is not None


def _place(name: str, operation: Any) -> str:
    """Return an operation's name, and the innermost line of the program outside libraries."""
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
