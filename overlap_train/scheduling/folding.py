"""The calls of a model for inference: each convolution takes in what follows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from overlap_train.scheduling.calls import Call, tensor_bytes
from overlap_train.scheduling.graph import Work

__all__ = ["fold_calls"]


def fold_calls(calls: Sequence[Call], outputs: Sequence[Any], *, residuals: bool = True) -> list[Call]:
    """Fold into each product the BatchNormalization, addition (`residuals`) and activation behind it.

    A call with what was folded into it has the outputs of the last of them, and is made in its place; the
    symbolic `outputs` of the model stay.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for tensor in call.inputs:
            readers[id(tensor)].append(index)
    for tensor in outputs:
        readers[id(tensor)].append(len(calls))
    left: dict[int, Call] = dict(enumerate(calls))
    for index, call in enumerate(calls):
        if index not in left or call.product is None:
            continue
        # The layer itself may run on our convolution too.
        product = call.product
        run = (lambda values, product=product: [product(*values)]) if product.is_convolution else call.run
        folded, members = replace(call, run=run), [index]
        while grown := _grown(folded, calls, readers, left, residuals):
            folded, after = grown
            members.append(after)
        for member in members:
            del left[member]
        left[members[-1]] = folded
    return [left[index] for index in sorted(left)]


def _grown(
    call: Call, calls: Sequence[Call], readers: dict[int, list[int]], left: dict[int, Call], residuals: bool
) -> tuple[Call, int] | None:
    """Return a call with the only reader of its output folded in, and which that is, or None."""
    (tensor,) = call.outputs
    only = readers[id(tensor)]
    if len(only) != 1 or only[0] not in left or call.product is None:
        return None
    after = calls[only[0]]
    others = [other for other in after.inputs if other is not tensor]
    if len(others) > (1 if residuals else 0) or len(after.outputs) != 1:
        return None
    other = others[0] if others else None
    product = call.product.followed_by(after.operation, like=tensor, other=other)
    if product is None:
        return None
    works = (call.work, after.work)
    work = Work(
        call.work.kind,
        sum(work.flops for work in works),
        # What lies between the two is not written and read again.
        sum(work.moved_bytes for work in works) - 2.0 * tensor_bytes(tensor),
        sum(work.weight_bytes for work in works),
    )
    grown = Call(
        f"{call.name.partition('..')[0]}..{after.name}",
        call.operation,
        (*call.inputs, *others),
        after.outputs,
        work,
        lambda values: [product(*values)],
        product,
    )
    return grown, only[0]
