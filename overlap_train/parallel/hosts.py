"""What the hosts of a training tell each other between two training calls; mostly there is one.

The training threads of all hosts call the same functions here in the same order; each call waits for the
others. So nothing here may depend on a host's own clock, unless it has been agreed upon before. What several
hosts do for that is in `cluster_hosts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._support.printing import error_text
from overlap_train.errors import HostMismatchError


class SlowHost(NamedTuple):
    """The host that the others waited for, and for how many seconds."""

    host: int
    seconds: float


class Hosts:
    """The hosts that train together, of which this is one; number 0 is the chief. On the training thread.

    A training on one host has no other to ask.
    """

    def __init__(self, count: int = 1, index: int = 0, waits: Any = None) -> None:
        self.count = count
        self.index = index
        self.waits = waits

    @property
    def is_chief(self) -> bool:
        """Whether this host is the one that runs callbacks and writes checkpoints."""
        return self.index == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all hosts, in their order; from other hosts as `encoded` makes them."""
        return [value]

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of tensors over the hosts."""
        return list(tensors)

    def numbers(self, own: Sequence[float]) -> npt.NDArray[Any]:
        """Return a few numbers of each host, float64[hosts, n], faster than `gather`."""
        return np.asarray([own], float)

    def tensors_from_chief(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the chief's tensors; the others pass some of the same shapes and dtypes."""
        return self.sum(list(tensors) if self.is_chief else [tf.zeros_like(t) for t in tensors])

    def from_chief(self, value: Any) -> Any:
        """Return the chief's value."""
        return self.gather(value)[0]

    def any(self, flag: bool) -> bool:
        """Whether it is so on any host."""
        return bool(self.numbers([flag]).any())

    def all(self, flag: bool) -> bool:
        """Whether it is so on every host."""
        return bool(self.numbers([flag]).all())

    def check_same(self, description: Mapping[str, Any]) -> None:
        """Raise HostMismatchError on every host if the description of any differs from the chief's."""
        descriptions = self.gather(dict(description))
        for host, other in enumerate(descriptions):
            for part in dict.fromkeys([*descriptions[0], *other]):
                value = descriptions[0].get(part)
                if other.get(part) != value:
                    raise HostMismatchError(
                        f"host {host} has another {part} than the chief: {_short(other.get(part))} "
                        f"instead of {_short(value)}; start all hosts with the same program and data"
                    )

    def check_same_logs(self, epoch: int, logs: Mapping[str, Any], *, did: str = "trained") -> None:
        """Raise HostMismatchError on every host if the logs of an epoch differ by more than rounding."""
        if self.count > 1:
            numbers = [value for value in logs.values() if isinstance(value, float)]
            self.check_close(f"has {did} epoch {epoch + 1} on other batches than the chief", numbers)

    def check_close(self, difference: str, own: Sequence[float]) -> None:
        """Raise HostMismatchError on every host if numbers of any differ from the chief's."""
        table = self.numbers(own)
        for host, row in enumerate(table):
            if not np.allclose(row, table[0], rtol=1e-3, atol=1e-6, equal_nan=True):
                raise HostMismatchError(
                    f"host {host} {difference}: its numbers are {_short(row.tolist())}, the chief's "
                    f"{_short(table[0].tolist())}; give all hosts the same data in the same order, with the "
                    "same seeds (keras.utils.set_random_seed)"
                )

    def begin_waits(self) -> None:
        """Forget how long the hosts have waited for each other so far."""
        if self.waits is not None:
            self.waits.mark()

    def slow_host(self, trained_s: float) -> SlowHost | None:
        """Return the host that the others have waited for since `begin_waits`; the chief's seconds count."""
        return None

    def chief_first(self, action: Callable[[], Any]) -> Any:
        """Run something on the chief and return its result there; a failure is raised on all hosts."""
        return self.all_do(lambda: action() if self.is_chief else None)

    def all_do(self, action: Callable[[], Any]) -> Any:
        """Run something on every host and return its result there.

        A failure is raised on all: this host's own, or one that says what the first host to have failed says.
        """
        result, error = None, None
        try:
            result = action()
        except BaseException as raised:
            error = raised
        if not self.any(error is not None):
            return result
        failures = self.gather(None if error is None else error_text(error))
        if error is not None:
            raise error
        host = next(host for host, failure in enumerate(failures) if failure is not None)
        name = f"host {host}" if host else "the chief"
        raise HostMismatchError(f"{name} has failed: {failures[host]}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
