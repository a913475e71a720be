"""How far the training may run ahead of the validation so that nobody can tell (contracts C3 and C4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from overlap_train._callbacks.hooks import acts_on_model_only, may_change_training
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import cache_files
from overlap_train._fit.draws import draw_in_turn, read_the_training, settable
from overlap_train._fit.idle_cores import IdleCores
from overlap_train._fit.overlap_gain import OverlapJudge
from overlap_train._fit.shared_state import TOO_MUCH, SharedState
from overlap_train._inspection.code import Unclear
from overlap_train._keras import data as keras_data
from overlap_train._snapshot import StateVariable
from overlap_train._training.step import Step
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.suite import ValidationSuite
from overlap_train.options.validation import ValidationPolicy
from overlap_train.records import Span

__all__ = ["LagControl", "effective_lag"]

# So many rollbacks among so many deliveries, and running ahead has stopped to pay.
_ROLLBACKS, _DELIVERIES = 3, 5

# What a validation takes of a core that is idle anyway is gained, and the rest is taken from the training,
# with some 4% on top for the caches that they share. With 0.13 to 0.29 of a core an epoch took 0.98 to 1.07
# of the time in step, with 0.6 at most 1.01. Parts of a batch in memory that run side by side bear it: an
# operation of the validation holds up one of them only.
_LEAST_CORES = 0.5

_REMEDY = 'ValidationPolicy(on_change="continue") would overlap'


def effective_lag(
    policy: ValidationPolicy,
    feed: Feed,
    step: Step,
    suite: ValidationSuite,
    callbacks: Sequence[keras.callbacks.Callback],
    *,
    waiting_hook: Callable[[keras.callbacks.Callback], str | None] = lambda callback: None,
    sets: Sequence[Any] = (),
    model: keras.Model | None = None,
    shared: SharedState | None = None,
) -> tuple[int, str | None]:
    """Returns the lag, and why it is 0 where the policy would allow more.

    Args:
        policy: what the user allows.
        feed: the training data.
        step: the training step.
        suite: what is validated.
        callbacks: the user's, and the history.
        waiting_hook: returns which hook of one of them must not be called for an epoch that may be undone.
        sets: the validation sets as the user gave them.
        model: that is trained; None where its data is known not to look at it.
        shared: by the Python of the data of both.
    """
    if policy.max_lag == 0 or not suite:
        return policy.max_lag, None
    reason = suite.in_step or _cached_by_both(feed, sets)
    if reason is None and policy.on_change == "rollback":
        reason = _kept_nowhere(feed, step) or _drawn_by_both(feed, step, model)
        reason = reason or _noticed(policy, feed, suite, callbacks, waiting_hook, model)
        if reason is None and feed.acts_at_epochs and any(map(keras_data.acts_at_epochs, sets)):
            reason = (
                "the training and the validation data both do something at the end of an epoch "
                f"(PyDataset.on_epoch_end), and in turn as they may share a random generator; {_REMEDY}"
            )
        if reason is None and shared is not None and shared.reason is not None:
            reason = f"{shared.reason}; {_REMEDY}"
        reason = reason or _draws(feed, step, callbacks, sets, model)
    return (policy.max_lag, None) if reason is None else (0, reason)


def _draws(
    feed: Feed,
    step: Step,
    callbacks: Sequence[keras.callbacks.Callback],
    sets: Sequence[Any],
    model: keras.Model | None,
) -> str | None:
    """Returns who may draw or read in turn with the training, as `effective_lag`; None if nobody does."""
    try:
        reason = None
        if model is not None:
            written = step.traced.written if step.traced is not None else ()
            reason = read_the_training(feed, sets, model, callbacks, written)
        return reason or draw_in_turn(feed, sets, callbacks)
    except Unclear:
        return f"{TOO_MUCH}; {_REMEDY}"


def _cached_by_both(feed: Feed, sets: Sequence[Any]) -> str | None:
    """Returns which file either a training or a validation writes as a cache of both, or None."""
    given = [keras.utils.unpack_x_y_sample_weight(data)[0] for data in sets]
    files = sorted(feed.files & frozenset().union(*map(cache_files, given)))
    if files:
        return (
            f"the training and the validation data are cached in one file ({files[0]}), which the first pass "
            "over either writes; a file for each would overlap"
        )
    return None


def _kept_nowhere(feed: Feed, step: Step) -> str | None:
    """Returns what a training step does that no rollback undoes, or None."""
    if step.traced is None:
        return "the training steps run operation by operation"
    for function, name in ((step.traced, "the training step"), (feed.preparation, "preprocess")):
        for effect in function.effects if function is not None else ():
            return f"{name} {effect}"
    return None


def _drawn_by_both(feed: Feed, step: Step, model: keras.Model | None) -> str | None:
    """Returns to which variables of the model the pipeline writes, which fetches ahead, or None."""
    drawn = feed.drawn_variables
    own = [StateVariable.of_keras(each) for each in (model.variables if model is not None and drawn else ())]
    handles = {id(handle) for each in own for handle in each.handles}
    used = step.traced.variables if step.traced is not None else ()
    handles |= {id(variable.handle) for variable in used}
    names = [variable.name for variable in drawn if id(variable.handle) in handles]
    if not names:
        return None
    return (
        "the pipeline of the training data writes to variables of the model, and fetches ahead "
        f"({', '.join(names[:3])}); layers of its own for the data would overlap"
    )


def _noticed(
    policy: ValidationPolicy,
    feed: Feed,
    suite: ValidationSuite,
    callbacks: Sequence[keras.callbacks.Callback],
    waiting_hook: Callable[[keras.callbacks.Callback], str | None],
    model: keras.Model | None,
) -> str | None:
    """Returns by what a rollback would be noticed, or None."""
    read = _settable(feed, model, callbacks)
    if read:
        names = ", ".join(read[:3])
        return (
            f"the pipeline of the training data reads what a callback may set, as it stands then ({names}); "
            f"{_REMEDY}"
        )
    for callback in callbacks:
        hook = waiting_hook(callback)
        if hook is not None:
            name = type(callback).__name__
            left_out = f"overlap_train.EpochOnly({name}(...)), which leaves out its batch hooks"
            without = "" if hook == "on_epoch_begin" else f", as would {left_out},"
            watches = f"or {name}.overlap_safe = True if it only watches"
            reason = f"{name}.{hook} must not run for an epoch that may be undone"
            return f"{reason}; {_REMEDY}{without or ','} {watches}"
    changing = [callback for callback in callbacks if may_change_training(callback)]
    if not changing:
        return None
    if not suite.rewindable:
        acting = type(changing[0]).__name__
        return (
            f"{acting} may change the training, and the validation data comes from a generator and cannot be "
            f"rewound; {_REMEDY}, or {acting}.overlap_safe = True if it changes nothing"
        )
    return _lost(policy, feed, changing)


def _settable(
    feed: Feed, model: keras.Model | None, callbacks: Sequence[keras.callbacks.Callback]
) -> Sequence[str]:
    """Returns what the pipeline of the training data reads and a callback may set, as far as is known."""
    try:
        return settable(feed, model, callbacks) if model is not None else ()
    except Unclear:
        return feed.reads


def _lost(policy: ValidationPolicy, feed: Feed, changing: Sequence[keras.callbacks.Callback]) -> str | None:
    """Returns why the training data could not be trained again, or None.

    Args:
        policy: says how many batches may be kept.
        feed: the data.
        changing: the callbacks that may change the training.
    """
    if feed.rewindable:
        return None
    foreign = [callback for callback in changing if not acts_on_model_only(callback)]
    if feed.runs_python and foreign:
        acting = type(foreign[0]).__name__
        return (
            f"{acting} may change the training, whose data cannot be rewound, because Python makes it and "
            f"{acting} may change what it makes; {_REMEDY}, or {acting}.overlap_safe = True if it changes "
            "nothing"
        )
    if feed.keep(policy.keep_bytes):
        return None
    acting = type(changing[0]).__name__
    return (
        f"{acting} may change the training, whose data cannot be rewound (Python makes it, or its pipeline "
        f"keeps a state) and is not kept; {_REMEDY}, or {acting}.overlap_safe = True if it changes nothing"
    )


class LagControl:
    """Ends running ahead during a fit where it does not pay. On the training thread.

    Args:
        backlog: whose `max_lag` is set to 0.
        say: told the reason.
        idle: what the training leaves of the cores; None if the validation has devices of its own.
        streamed: whether a pipeline prepares the batches meanwhile.
        judges_overlap: whether a validation beside the training has to cost less than one alone; rollbacks
            that have become the rule always count.
        shared: by the Python of the data of both; None where it does not matter who comes first.
    """

    def __init__(
        self,
        backlog: Backlog,
        say: Callable[[str], None],
        idle: IdleCores | None,
        *,
        streamed: bool,
        judges_overlap: bool,
        shared: SharedState | None = None,
    ) -> None:
        self._backlog = backlog
        self._shared = shared
        self._idle = idle
        self._streamed = streamed
        self._say = say
        self._judge = OverlapJudge() if judges_overlap else None
        self._said_full = False
        self._untold: str | None = None
        self._calls: list[tuple[Span, int]] = []
        self._rolled_back: list[bool] = []

    def wants_alone(self, epoch: int, splits: int) -> bool:
        """Whether the validation of the epoch that has just been trained should be waited for.

        So it should once to be compared with, and as long as the training leaves hardly any core idle. This
        is known before the first validation begins, and may change: a first epoch often fills a cache.

        Args:
            epoch: that epoch.
            splits: parts of a batch that the training runs side by side.
        """
        if self._backlog.max_lag and self._shared is not None and self._shared.open:
            return True
        if self._judge is None or not self._backlog.max_lag:
            return False
        left = None if self._idle is None else self._idle.left
        bears_it = splits > 1 and not self._streamed
        if left is None or left >= _LEAST_CORES or bears_it:
            return self._judge.wants_alone
        if not self._said_full:
            self._said_full = True
            self._say(
                f"epoch {epoch + 1}: the training leaves {left:.2f} of a core idle; validating in step "
                f"with it as long as that is below {_LEAST_CORES:g}"
            )
        return True

    def first_begins(self) -> None:
        """Takes in that a validation is about to begin; in the first one it sees what Python draws."""
        if self._shared is not None and self._backlog.max_lag:
            self._shared.begin()

    def first_validated(self) -> None:
        """Takes in that a validation has ended, and that nobody has been called since."""
        if self._shared is not None and self._shared.end() and self._backlog.max_lag:
            self._end(
                "the Python of the training or of the validation data changes something that both can get "
                f"hold of, such as a random generator or a counter; {_REMEDY}"
            )

    def trained(self, span: Span, steps: int) -> None:
        """Takes in a training call that traced nothing."""
        self._calls.append((span, steps))

    def validated(self, spans: Sequence[Span], *, alone: bool, cpu_s: float | None = None) -> None:
        """Takes in the workers' spans of an epoch, and whether the training waited for them.

        Args:
            spans: of its validation.
            alone: whether nothing was trained meanwhile.
            cpu_s: the processor seconds of that wait, or None if they do not tell what a validation takes.
        """
        if self._judge is None or not spans:
            return
        if alone:
            seconds = max(s.end_s for s in spans) - min(s.start_s for s in spans)
            self._judge.observe_alone(seconds, cpu_s)
        else:
            self._judge.observe_beside(self._calls, spans)
        self._calls.clear()
        if self._judge.pays() is False and self._backlog.max_lag:
            self._end("running ahead makes training slower by what a validation takes")
            self._judge = None

    def delivered(self, *, rolled_back: bool) -> None:
        """Takes in whether a delivery rolled the training back."""
        self._rolled_back = [*self._rolled_back, rolled_back][-_DELIVERIES:]
        if self._backlog.max_lag and sum(self._rolled_back) >= _ROLLBACKS:
            self._end(f"{_ROLLBACKS} of the last {len(self._rolled_back)} epochs were rolled back")

    def resumed(self, max_lag: int) -> None:
        """Goes on as far ahead as when a checkpoint was written, and no further."""
        if max_lag < self._backlog.max_lag:
            self._backlog.max_lag = max_lag
            self._untold = None if max_lag else "the training that wrote the checkpoint did so too"

    def waits_for(self, epoch: int) -> None:
        """Takes in that an epoch will follow, and waits for the validation of this one; tells why, once.

        It is told no sooner, because the epoch that was to follow may not come: the last one has been
        trained, or a callback stops the training.
        """
        reason, self._untold = self._untold, None
        if reason is not None:
            self._say(f"validating in step with the training from epoch {epoch + 1} on: {reason}")

    def _end(self, reason: str) -> None:
        self._backlog.max_lag = 0
        self._untold = reason
