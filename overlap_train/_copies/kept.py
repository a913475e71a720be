"""What an object holds under names, taken so that it can be put back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlap_train._copies.objects import keeps
from overlap_train._copies.values import Copies, LookInto, Resource, copied
from overlap_train._inspection.lookup import variables_of

__all__ = ["KeptState", "kept"]


@dataclass(frozen=True)
class KeptState:
    """What an object held at one moment.

    Attributes:
        kind: the name of its class, or of what it is.
        values: its attributes by name, or what it told itself.
        left_out: the attributes that could not be copied.
        lost: those of them, and of what the attributes hold, that a training may change; the others are
            functions, parts of the model and the like.
        tells_sharing: whether it says what its attributes hold in common, which earlier releases did not.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    tells_sharing: bool = True


def kept(
    owner: Any,
    names: Iterable[str],
    copies: Copies,
    *,
    look_into: LookInto,
    foreign: Collection[int],
    copy_arrays: bool = True,
) -> KeptState:
    """Copies attributes of an object.

    Args:
        owner: any object.
        names: of the attributes.
        copies: of what others hold too.
        look_into: returns the attributes that an object among them is made of, or None.
        foreign: the `id` of each variable that somebody else restores.
        copy_arrays: whether the owner may write into its arrays.
    """
    values: dict[str, Any] = {}
    left_out, lost = [], []
    for name in names:
        try:
            if not keeps(type(owner), name):
                raise Resource(f"what hides {name!r} of its class")
            values[name] = copied(
                variables_of(owner)[name],
                copy_arrays=copy_arrays,
                foreign=foreign,
                look_into=look_into,
                copies=copies,
                holder=owner,
            )
        except Resource as error:
            left_out.append(name)
            lost += [] if error.constant else [name]
        else:
            lost += [f"{name}.{inner}" for inner in getattr(values[name], "lost", ())]
    return KeptState(type(owner).__name__, values, tuple(left_out), tuple(lost))
