"""Several hosts, one training: the chief's callbacks decide, and the other hosts follow.

Every host trains the same batches and holds the same weights. Callbacks and checkpoints belong to the chief;
what its callbacks change (weights, the optimizer's variables, `stop_training`) and the logs that they got
are sent to the others after each hook. The classes here stand in for those of a training on one host and
have their methods. Everything belongs to the training threads, which meet in each call (`parallel/hosts.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.delivery import BeginNext, Delivery, Ended, Outcome
from overlap_train._callbacks.hooks import (
    TEST_HOOKS,
    TRAIN_BATCH_HOOKS,
    heard,
    listens,
    wants_train_batches,
)
from overlap_train._checkpoint.content import StartPoint, as_text, of_text
from overlap_train._checkpoint.fingerprints import describe_configuration, fingerprint
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor, CursorState
from overlap_train._data.feed import Feed
from overlap_train._fit.request import FitRequest
from overlap_train._keras import models as keras_models
from overlap_train._keras.randomness import random_states, set_random_states
from overlap_train._snapshot import ModelState, Snapshot, Values
from overlap_train._support.version import __version__
from overlap_train._training.strategy import Replicas
from overlap_train._validation.suite import ValidationSuite
from overlap_train.options.threads import ways_are_fixed
from overlap_train.options.validation import ValidationPolicy
from overlap_train.parallel.cluster import program_digest
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import ValidationResult


def deliver_together(
    request: FitRequest,
    state: ModelState,
    callbacks: keras.callbacks.CallbackList,
    suite: ValidationSuite,
) -> tuple[SharedCallbacks, SharedDelivery]:
    """Returns the callbacks and the delivery of a `fit` on several hosts, whose effects all of them get."""
    hosts = request.settings.hosts
    hosts.all_do(lambda: _refuse_in_step(suite))  # for which a callback on one host alone may be the cause
    shared = SharedCallbacks(hosts, request.model, state, callbacks)
    return shared, SharedDelivery(shared, request.settings.validation.on_change, suite)


def _refuse_in_step(suite: ValidationSuite) -> None:
    if suite.reasons:
        cause = f"{suite.reasons[0].sentence}; {suite.reasons[0].remedy}"
        raise ValueError(f"{cause}; that is for one host: train on one, or leave that out")


def _is_everywhere(callback: keras.callbacks.Callback) -> bool:
    return getattr(callback, "on_all_hosts", False) is True


class SharedCallbacks:
    """A `CallbackList` whose hooks act on all hosts: those of the chief's callbacks by what they change.

    No hook may have parts of the fit built anew: that would be on its host alone, and traces ask all hosts.

    Callbacks with `on_all_hosts` are called on each host, behind the others; they change nothing. The hosts
    meet behind each of them, so that all learn where one has failed or ended the epoch. It has to be each:
    the next hook may wait for the other hosts itself, as Ray's `report` does.
    """

    _NAMES = ("on_train_begin", "on_epoch_begin", *TRAIN_BATCH_HOOKS, "on_epoch_end", "on_train_end")

    def __init__(
        self,
        hosts: Hosts,
        model: keras.Model,
        state: ModelState,
        callbacks: keras.callbacks.CallbackList,
    ) -> None:
        self.hosts, self.model, self.state = hosts, model, state
        self.callbacks = list(callbacks.callbacks)
        if not hosts.is_chief:
            kinds = (keras.callbacks.TerminateOnNaN, keras.callbacks.History)
            self.callbacks = [c for c in self.callbacks if type(c) in kinds or _is_everywhere(c)]
        everywhere = list(filter(_is_everywhere, self.callbacks))
        self.own = callbacks  # without those that are called everywhere
        if everywhere or not hosts.is_chief:
            own = [callback for callback in self.callbacks if not _is_everywhere(callback)]
            self.own = keras.callbacks.CallbackList(own, model=model, **callbacks.params)
        # By now: a callback that began to listen later would do so on this host alone.
        self.listening = {
            hook: [c for c in everywhere if listens([c], hook, hook.replace("_train_batch", "_batch"))]
            for hook in self._NAMES
        }

    def _call(self, hook: str, number: int | None = None, logs: Mapping[str, Any] | None = None) -> None:
        arguments = [logs] if number is None else [number, logs]
        call = functools.partial(getattr(self.own, hook), *arguments)
        before = self.state.read()
        self.hosts.chief_first(lambda: self.guarded(call))
        if not self.hosts.is_chief:
            call()
        self.share(before, self.state.read(), stop=bool(self.model.stop_training))
        self.call_everywhere(hook, *arguments)

    on_train_begin = functools.partialmethod(_call, "on_train_begin")
    on_train_end = functools.partialmethod(_call, "on_train_end")
    on_epoch_begin = functools.partialmethod(_call, "on_epoch_begin")
    on_train_batch_begin = functools.partialmethod(_call, "on_train_batch_begin")
    on_train_batch_end = functools.partialmethod(_call, "on_train_batch_end")

    def share(self, before: Values, after: Values, *, stop: bool, more: Any = None) -> tuple[list[int], Any]:
        """Sends what differs between two readings of the chief's variables, and sets it on the others."""
        indices = self.state.differing(before, after) if self.hosts.is_chief else []
        indices, stop, more = self.hosts.from_chief([indices, stop, more])
        values = after.flat()
        tensors = self.hosts.tensors_from_chief([values[index] for index in indices])
        if not self.hosts.is_chief:
            self.state.set_values(indices, tensors)
            self.model.stop_training = stop
        return indices, more

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Runs hooks, which must not compile the model."""
        function = self.model.train_function
        result = action()
        if self.model.train_function is not function:
            require_unchanged("a callback compiled the model or made its train function anew")
        return result

    def call_everywhere(self, hook: str, *arguments: Any) -> None:
        """Calls a hook of the callbacks with `on_all_hosts`, on all hosts."""
        for callback in self.listening[hook]:
            self.hosts.all_do(functools.partial(self._call_here, callback, hook, arguments))

    def _call_here(self, callback: keras.callbacks.Callback, hook: str, arguments: Sequence[Any]) -> None:
        stops = self.model.stop_training
        self.guarded(functools.partial(getattr(callback, hook), *arguments))
        if self.model.stop_training != stops:
            raise ValueError(
                f"{type(callback).__name__}.{hook} set stop_training, and callbacks with on_all_hosts = True "
                "change nothing: leave that out, so that the chief calls it and all hosts stop"
            )


class SharedDelivery(Delivery):
    """Delivers an epoch to the chief's callbacks and does elsewhere what came of it."""

    def __init__(self, shared: SharedCallbacks, on_change: str, suite: ValidationSuite) -> None:
        super().__init__(shared.model, shared.state, shared.own, on_change=on_change, suite=suite)
        self._shared = shared

    def deliver(
        self,
        snapshot: Snapshot,
        train_logs: Mapping[str, Any],
        results: Mapping[str, ValidationResult],
        *,
        stops: bool,
        trained_on: bool,
        ended: Ended = lambda outcome: None,
        begin_next: BeginNext | None = None,
    ) -> Outcome:
        """Delivers on the chief, does what follows elsewhere, and then calls those with `on_all_hosts`."""
        assert begin_next is None  # on several hosts no hook is called late
        kept = {name: len(values) for name, values in self._model.history.history.items()}
        deliver = functools.partial(super().deliver, snapshot, train_logs, results)
        outcome: Outcome | None = self._shared.hosts.chief_first(
            lambda: self._shared.guarded(lambda: deliver(stops=stops, trained_on=trained_on, ended=ended))
        )
        if outcome is not None:
            self._tell(snapshot, outcome, kept)
        else:
            outcome = self._follow(snapshot, results, trained_on=trained_on)
            ended(outcome)
        if self._shared.listening["on_epoch_end"]:
            aside = self.state.read() if trained_on and not outcome.rolled_back else None
            if aside is not None:  # or the model stands there
                self.state.restore(outcome.values)
            self._shared.call_everywhere("on_epoch_end", snapshot.epoch, dict(outcome.logs))
            if aside is not None:
                self.state.restore(aside)
        return outcome

    def _tell(self, snapshot: Snapshot, outcome: Outcome, kept: Mapping[str, int]) -> None:
        """Sends what came of an epoch; `kept` is how many values of each name the history had before it."""
        # What the history got: callbacks may have added to their copy of the logs.
        history = self._model.history.history
        recorded = {name: v[-1] for name, v in history.items() if len(v) > kept.get(name, 0)}
        logs = {**recorded, **outcome.logs, **recorded}  # in the history's order, which theirs must have
        report = [logs, outcome.stop, outcome.rolled_back, outcome.reason]
        stop = bool(self._model.stop_training)
        self._shared.share(snapshot.values, outcome.values, stop=stop, more=report)

    def _follow(
        self, snapshot: Snapshot, results: Mapping[str, ValidationResult], *, trained_on: bool
    ) -> Outcome:
        """Does what the chief's callbacks did at the end of an epoch."""
        aside = self.state.read() if trained_on else None
        if aside is not None:
            self.state.restore(snapshot.values)
        indices, report = self._shared.share(snapshot.values, snapshot.values, stop=False)
        logs, stop, rolled_back, reason = report
        stop_training = self._model.stop_training
        if results:
            self._model.stop_evaluating = False
        for callback in self._callbacks.callbacks:  # one by one: a CallbackList would sort the names
            callback.on_epoch_end(snapshot.epoch, dict(logs))
        values = self.state.read_at(snapshot.values)
        if aside is not None and not rolled_back:
            self._go_on(aside, indices, values)
        self._model.stop_training = stop_training
        return Outcome(logs, stop, values, rolled_back=rolled_back, reason=reason)


def start_together(shared: SharedCallbacks, resumer: Resumer | None, cursor: Cursor) -> StartPoint | None:
    """Starts all hosts from the checkpoint that the chief, which alone has a resumer, has found."""
    hosts, state, history = shared.hosts, shared.state, shared.model.history

    def find() -> list[Any] | None:
        # What its own callbacks change in an epoch that goes on goes to the others with the rest.
        assert resumer is not None
        own = resumer.start(state, cursor, shared.own.on_epoch_begin)
        if own is None:
            return None
        point = asdict(own) | {"position": None}
        python = as_text({"data": dict(own.position.data), "random": random_states()})
        return [point, own.position.place(), history.epoch, history.history, python]

    found = hosts.from_chief(hosts.chief_first(find))
    if found is None:
        return None
    point, place, history.epoch, history.history, python = found
    values = hosts.tensors_from_chief(state.read().flat())

    def follow() -> None:
        if not hosts.is_chief:
            state.restore(state.pack(values))
            state.restore_pipeline(state.pack(values))
            parts = of_text(python)
            cursor.resume(CursorState(**place, data=parts["data"]))  # as far in its data as the chief
            set_random_states(parts["random"])

    hosts.all_do(follow)
    if place["within"]:
        shared.call_everywhere("on_epoch_begin", point["epoch"], {})
    return StartPoint(**{**point, "position": CursorState(**place)})


def agree_to_start(
    request: FitRequest, replicas: Replicas, callbacks: Iterable[keras.callbacks.Callback]
) -> None:
    """Checks that all replicas and hosts are about to do the same, and makes the model's variables."""
    model, feed, policy = request.model, request.feed, request.settings.validation
    replicas.most_rows = feed.full_batch
    if replicas.hosts.count > 1:
        replicas.hosts.all_do(lambda: _check_shareable(policy, callbacks))
        feed.share_seeds(replicas.hosts.from_chief)
        data: dict[str, Any] = {"data type": _rowless(feed)}
        if replicas.own_rows:  # of a batch of all hosts, and an epoch as long as that of the longest
            rows, counts = zip(*replicas.hosts.gather([feed.first_rows, feed.num_batches]), strict=True)
            replicas.most_rows = None if None in rows else sum(rows)
            feed.num_batches = None if None in counts else max(counts)
            feed.ends_alone = False
        else:
            data = {"batch size": feed.full_batch, "list of unseeded draws": list(feed.unseeded)}
            data |= {f"training data {part}".strip(): text for part, text in feed.describe().items()}
        freqs = [request.validation_freq if f.freq is None else f.freq for f in request.functions.values()]
        described = {
            "number of epochs": request.epochs,
            "initial_epoch": request.initial_epoch,
            "steps_per_epoch": request.steps_per_epoch,
            "configure(deterministic)": ways_are_fixed(),
            "ExecutionPlan": request.settings.execution,
            "ValidationPolicy": replace(policy, functions=None),
            "use of resume": request.checkpoints is not None,
            "list of evaluation functions": list(request.functions),
            "validation_freq": sorted({str(freq) for freq in [*freqs, *request.elsewhere]}),
            "list of callbacks that listen to batches": _kinds(filter(wants_train_batches, callbacks)),
            "list of callbacks with on_all_hosts": _kinds(filter(_is_everywhere, callbacks)),
            **{part.replace(".", " "): text for part, text in request.described_validation.items()},
        }
        replicas.hosts.check_same(
            {
                "version of overlap_train": __version__,
                "program": program_digest(),
                **{name: str(value) for name, value in (data | described).items()},
                "structure of the model": _kinds(keras_models.flat_layers(model)),
            }
        )
        if feed.unseeded and not replicas.own_rows:
            raise ValueError(
                f"the training data draws without a seed ({', '.join(dict.fromkeys(feed.unseeded))}): each "
                "host would train on other batches; give it one, or call keras.utils.set_random_seed before "
                "the data is made"
            )
    replicas.check_batch(feed.full_batch)
    replicas.build(model, feed.element_spec)
    alike = fingerprint(model, feed) | describe_configuration(model)
    if replicas.own_rows:
        alike = {part: text for part, text in alike.items() if not part.startswith("training data")}
    replicas.hosts.check_same(alike)


def _rowless(feed: Feed) -> str:
    """Describes a batch without its number of rows."""
    leaves = keras.tree.flatten(feed.element_spec)
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves):
        return str(feed.element_spec)
    return str([(leaf.shape[1:], leaf.dtype) for leaf in leaves])


def _check_shareable(policy: ValidationPolicy, callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Refuses what would depend on one host's clock."""
    if policy.backlog != "block":
        raise ValueError(
            f"ValidationPolicy(backlog={policy.backlog!r}) lets a host's clock decide what is validated; "
            "use 'block' on several hosts"
        )
    for callback in callbacks:
        if _is_everywhere(callback) and (hooks := heard(callback, TEST_HOOKS)):
            raise ValueError(
                f"{type(callback).__name__} has on_all_hosts = True and {hooks[0]}, and the hooks of "
                "validations are called on the chief alone; leave one of them out"
            )
        if policy.every_steps is not None and callable(getattr(callback, "on_step_validation", None)):
            raise ValueError(
                f"{type(callback).__name__}.on_step_validation would be called on the chief alone; "
                "leave it out"
            )


def _kinds(things: Iterable[Any]) -> list[str]:
    return [type(thing).__name__ for thing in things]


def require_unchanged(changed: str | None) -> None:
    """Refuses what has `changed` since the training began, because several hosts build nothing anew."""
    if changed is not None:
        raise ValueError(f"{changed}, while the training on several hosts goes on; set them before fit")
