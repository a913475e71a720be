"""The planner times candidates on steps that count: none is lost, made twice or out of order."""

from __future__ import annotations

import gc
import math
import threading
import weakref

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._training import planner, trial
from overlap_train._training.loops import Loop, Pace, StepsDone
from overlap_train._training.planner import PlannedLoop, WarmUp, describe
from overlap_train._training.trial import Candidate, CandidateTiming, PlanCache
from tests import networks

PLAIN, XLA, SPLIT = Candidate(), Candidate(jit=True), Candidate(splits=4)
FAST, FAST_SPLIT = Candidate(fast="convolution"), Candidate(splits=4, fast="convolution")


class FakeTime:
    """A clock that only fake loops move on."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(planner.time, "monotonic", lambda: self.now)


class FakeDisturbance:
    """Other programs, which a test calls onto the machine."""

    present = False

    def found(self):
        return FakeDisturbance.present


class FakeCursor:
    def __init__(self, steps):
        self.left = steps

    def remaining(self):
        return self.left


class FakeLoop(Loop):
    name = "fake"

    def __init__(self, clock, log, candidate, step_s, fails=None):
        self._clock, self._log, self._candidate, self._step_s = clock, log, candidate, step_s
        self._fails = fails

    def run(self, cursor, max_steps):
        if self._fails:
            raise self._fails
        step_s = self._step_s(self._clock.now) if callable(self._step_s) else self._step_s
        self._clock.now += step_s * max_steps
        self._log += [self._candidate] * max_steps
        cursor.left -= max_steps
        return StepsDone(max_steps)


class Scene:
    """A planned loop over fakes, run as a session runs it."""

    def __init__(
        self, monkeypatch, tmp_path, candidates, step_s, *, total_steps, build_s=0.2, fails=None, **options
    ):
        self.clock, self.log, self.messages = FakeTime(monkeypatch), [], []
        monkeypatch.setattr(trial, "Disturbance", FakeDisturbance)
        self.pace, self.file = Pace(), tmp_path / "plan.json"
        self.built = []

        def build(candidate):
            self.built.append(candidate)
            self.clock.now += build_s
            error = (fails or {}).get(candidate)
            return FakeLoop(self.clock, self.log, candidate, step_s[candidate], error)

        self.loop = PlannedLoop(
            candidates,
            build,
            self.pace,
            total_steps=total_steps,
            cache=PlanCache(self.file),
            message=self.messages.append,
            **options,
        )

    def train(self, steps, *, at_most=None):
        cursor = FakeCursor(steps)
        while cursor.left:
            asked = min(self.pace.steps(), cursor.left, at_most or cursor.left)
            start = self.clock.now
            done = self.loop.run(cursor, asked)
            self.pace.observe(done.steps, self.clock.now - start)


def test_fastest_candidate_makes_the_remaining_steps_and_none_is_lost(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=10**6)
    scene.train(100_000)
    assert len(scene.log) == 100_000
    assert scene.log[0] == PLAIN
    assert scene.log[-1] == XLA
    assert scene.log.count(XLA) > 90_000
    assert scene.messages == ["plan: fake, no splits, XLA, 12500 steps a call (measured 0.02 ms a step)"]
    assert scene.loop.splits == 1


def test_slower_candidate_is_left_again(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 8e-4}, total_steps=10**6)
    scene.train(50_000)
    assert XLA in scene.log
    assert scene.log[-1] == PLAIN
    assert len(scene.messages) == 1


def test_nothing_is_tried_in_a_run_too_short_to_pay(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=2_000)
    scene.train(2_000)
    assert set(scene.log) == {PLAIN}
    assert scene.built == [PLAIN]


def test_what_would_not_pay_in_this_run_is_not_tried(monkeypatch, tmp_path):
    """Tracing takes 1.1 s and saves 3 ms a step."""
    step_s = {PLAIN: 1e-2, FAST: 7e-3}
    for steps, tried in ((150, False), (500, True)):
        scene = Scene(
            monkeypatch, tmp_path / str(steps), [PLAIN, FAST], step_s, total_steps=steps, fast_extra_s=0.9
        )
        scene.train(steps)
        assert (FAST in scene.log) == tried


def test_single_candidate_is_not_timed(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [SPLIT], {SPLIT: 1e-2}, total_steps=10**6)
    assert scene.messages == ["plan: fake, 4 splits, no XLA"]
    assert scene.loop.splits == 4
    scene.train(50)
    assert not scene.file.exists()


def test_next_run_takes_the_measurements_over(monkeypatch, tmp_path):
    arguments = ([PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5})
    for _ in range(2):
        Scene(monkeypatch, tmp_path, *arguments, total_steps=10**6).train(100_000)
    again = Scene(monkeypatch, tmp_path, *arguments, total_steps=10**6)
    again.train(1_000)
    assert set(again.log) == {XLA}
    assert again.built == [XLA]
    short = Scene(monkeypatch, tmp_path, *arguments, total_steps=100)
    short.train(100)
    assert set(short.log) <= {PLAIN, XLA}


def test_measurements_of_a_busy_machine_are_not_believed_for_ever(monkeypatch, tmp_path):
    PlanCache(tmp_path / "plan.json").save(
        {PLAIN: CandidateTiming(0.3, 1e-4, 2), XLA: CandidateTiming(20.0, 2e-5, 2)}
    )
    last = []
    for _ in range(11):
        scene = Scene(monkeypatch, tmp_path, [XLA, PLAIN], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=100_000)
        scene.train(100_000)
        last.append((scene.log[0], scene.log[-1]))
    # The tenth measures again, and begins with what was best.
    assert last == [(PLAIN, PLAIN)] * 9 + [(PLAIN, XLA), (XLA, XLA)]


def test_short_runs_leave_the_doubt_to_a_longer_one(monkeypatch, tmp_path):
    """A tuner's trainings, one behind the other: measured again, two of ten would take half as long again."""
    PlanCache(tmp_path / "plan.json").save(
        {PLAIN: CandidateTiming(0.3, 4e-3, 2), SPLIT: CandidateTiming(0.3, 3e-3, 2)}
    )
    arguments = ([PLAIN, SPLIT], {PLAIN: 4e-3, SPLIT: 3e-3})
    for _ in range(25):
        short = Scene(monkeypatch, tmp_path, *arguments, total_steps=640)
        short.train(640)
        assert set(short.log) == {SPLIT}
    longer = Scene(monkeypatch, tmp_path, *arguments, total_steps=10_000)
    longer.train(10_000)
    assert PLAIN in longer.log
    assert longer.log[-1] == SPLIT


def test_one_disturbed_run_decides_for_no_other(monkeypatch, tmp_path):
    """What is believed are the shorter times of two runs."""
    quiet, disturbed = {PLAIN: 1e-2, SPLIT: 6e-3}, {PLAIN: 1.1e-2, SPLIT: 1.2e-2}
    last = []
    for step_s in (disturbed, quiet, disturbed, disturbed):
        scene = Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000)
        scene.train(1_000)
        last.append(scene.log[-1])
    assert last == [PLAIN, SPLIT, SPLIT, SPLIT]
    known = PlanCache(tmp_path / "plan.json").load()
    assert known[PLAIN].step_s == pytest.approx(1e-2)
    assert known[SPLIT].step_s == pytest.approx(6e-3)


def test_quiet_run_is_not_overruled_by_a_disturbed_one(monkeypatch, tmp_path):
    quiet, disturbed = {PLAIN: 1e-2, SPLIT: 6e-3}, {PLAIN: 1.1e-2, SPLIT: 1.2e-2}
    for step_s in (quiet, disturbed):
        scene = Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000)
        scene.train(1_000)
        assert scene.log[-1] == SPLIT
    assert all(timing.confirmed for timing in PlanCache(tmp_path / "plan.json").load().values())


def test_a_time_that_one_run_measured_is_doubted_if_it_may_be_twice_too_long(monkeypatch, tmp_path):
    """From steps that long nobody would hope to gain by leaving the splits."""
    PlanCache(tmp_path / "plan.json").save(
        {PLAIN: CandidateTiming(0.3, 5e-3), SPLIT: CandidateTiming(0.3, 3e-3)}
    )
    step_s = {PLAIN: 2e-3, SPLIT: 3e-3}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000)
    scene.train(1_000)
    assert (scene.log[0], scene.log[-1]) == (SPLIT, PLAIN)


def test_what_one_run_found_far_slower_is_not_tried_again(monkeypatch, tmp_path):
    PlanCache(tmp_path / "plan.json").save(
        {PLAIN: CandidateTiming(0.3, 1e-4), XLA: CandidateTiming(0.6, 8e-4)}
    )
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 8e-4}, total_steps=10**6)
    scene.train(50_000)
    assert scene.built == [PLAIN]
    known = PlanCache(tmp_path / "plan.json").load()
    assert (known[PLAIN].runs, known[XLA].runs) == (2, 1)


def test_what_is_measured_for_the_first_time_is_not_confirmed_by_that(monkeypatch, tmp_path):
    PlanCache(tmp_path / "plan.json").save({PLAIN: CandidateTiming(0.3, 1e-4)})
    Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 9e-5}, total_steps=10**6).train(50_000)
    known = PlanCache(tmp_path / "plan.json").load()
    assert (known[PLAIN].runs, known[XLA].runs) == (2, 1)
    again = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=10**6)
    again.train(50_000)
    assert again.log[-1] == XLA
    assert PlanCache(tmp_path / "plan.json").load()[XLA].confirmed


def test_what_xla_could_not_compile_is_remembered(monkeypatch, tmp_path):
    error = tf.errors.InvalidArgumentError(None, None, "no XLA kernel")
    arguments = [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}
    for tries in (1, 0, 0):
        scene = Scene(monkeypatch, tmp_path, *arguments, total_steps=10**6, fails={XLA: error})
        scene.train(30_000)
        assert scene.built.count(XLA) == tries


def test_when_nothing_could_be_compiled_all_is_tried_again(monkeypatch, tmp_path):
    failed = CandidateTiming(0.1, math.inf)
    PlanCache(tmp_path / "plan.json").save({PLAIN: failed, XLA: failed})
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=None)
    scene.train(100)
    assert set(scene.log) == {PLAIN}


def test_loops_traced_before_do_not_pass_for_cheap_ones(monkeypatch, tmp_path):
    """A second `fit` finds them traced; a short run in another process would have to trace them."""
    arguments = [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}
    Scene(monkeypatch, tmp_path, *arguments, total_steps=10**6, build_s=2.0).train(50_000)
    built_s = PlanCache(tmp_path / "plan.json").load()[XLA].build_s
    warm = Scene(
        monkeypatch, tmp_path, *arguments, total_steps=10**6, build_s=0.0, is_traced=lambda candidate: True
    )
    warm.train(50_000)
    known = PlanCache(tmp_path / "plan.json").load()
    assert known[XLA].runs == 2
    assert known[XLA].build_s == pytest.approx(built_s) == pytest.approx(2.0, rel=0.01)


def test_a_loop_known_but_not_traced_is_charged_for_that(monkeypatch, tmp_path):
    known = {PLAIN: CandidateTiming(0.3, 1.1e-3, 2), XLA: CandidateTiming(20.0, 2e-4, 2)}
    PlanCache(tmp_path / "plan.json").save(known)
    step_s = {PLAIN: 1.1e-3, XLA: 2e-4, FAST: 1e-3}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA, FAST], step_s, total_steps=5_000)
    scene.train(5_000)
    assert FAST in scene.log
    assert XLA not in scene.log


def test_a_trial_begins_only_if_the_run_is_long_enough_to_end_it(monkeypatch, tmp_path):
    """It would be traced for nothing, and by every such run again."""
    step_s = {PLAIN: 1.0, FAST: 0.5}
    for steps, tried in ((11, False), (14, True)):
        scene = Scene(monkeypatch, tmp_path / str(steps), [PLAIN, FAST], step_s, total_steps=steps)
        scene.train(steps)
        assert (FAST in scene.built) == tried
        assert PlanCache(tmp_path / str(steps) / "plan.json").load()


def test_steps_of_a_fixed_first_call_do_not_count_as_tracing(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-3, XLA: 2e-4}, total_steps=10**5)
    monkeypatch.setattr(scene.pace, "steps", lambda: 500)
    scene.train(10_000)
    assert PlanCache(tmp_path / "plan.json").load()[PLAIN].build_s == pytest.approx(0.201)


def test_known_slow_build_is_not_taken_for_a_short_run(monkeypatch, tmp_path):
    scene_file = PlanCache(tmp_path / "plan.json")
    scene_file.save({PLAIN: CandidateTiming(0.3, 1e-4, 2), XLA: CandidateTiming(2.0, 2e-5, 2)})
    step_s = {PLAIN: 1e-4, XLA: 2e-5}
    assert Scene(monkeypatch, tmp_path, [PLAIN, XLA], step_s, total_steps=1_000).built == [PLAIN]
    assert Scene(monkeypatch, tmp_path, [PLAIN, XLA], step_s, total_steps=10**6).built == [XLA]


def test_candidate_that_xla_cannot_compile_is_dropped_without_losing_a_step(monkeypatch, tmp_path):
    error = tf.errors.InvalidArgumentError(None, None, "no XLA kernel")
    step_s = {PLAIN: 1e-4, XLA: 2e-5}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], step_s, total_steps=10**6, fails={XLA: error})
    scene.train(30_000)
    assert scene.log == [PLAIN] * 30_000
    assert XLA in scene.built


def test_error_of_the_data_is_not_swallowed(monkeypatch, tmp_path):
    error = tf.errors.InvalidArgumentError(None, None, "label out of range")
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4}, total_steps=10**6, fails={PLAIN: error})
    with pytest.raises(tf.errors.InvalidArgumentError, match="label out of range"):
        scene.train(10)


def test_calls_of_one_step_end_the_trial(monkeypatch, tmp_path):
    """Where callbacks listen to batches, a call has one step and nothing can be timed."""
    scene = Scene(monkeypatch, tmp_path, [SPLIT, PLAIN], {SPLIT: 1e-3, PLAIN: 2e-3}, total_steps=10**6)
    scene.train(20, at_most=1)
    assert scene.messages == ["plan: fake, 4 splits, no XLA"]


def test_epochs_shorter_than_a_trial_call_still_end_it(monkeypatch, tmp_path):
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA], {PLAIN: 1e-4, XLA: 2e-5}, total_steps=10**6)
    for _ in range(60):
        scene.train(2)
    assert len(scene.messages) == 1
    assert len(scene.log) == 120


def test_plan_is_one_line():
    assert describe("in_memory", SPLIT, 96, 6.1e-3) == (
        "plan: in_memory, 4 splits, no XLA, 96 steps a call (measured 6.1 ms a step)"
    )


def test_fast_kernels_are_tried_after_keras_and_kept_where_they_win(monkeypatch, tmp_path):
    step_s = {SPLIT: 2e-2, PLAIN: 3e-2, FAST_SPLIT: 1e-2, FAST: 2e-2}
    scene = Scene(monkeypatch, tmp_path, [SPLIT, PLAIN, FAST_SPLIT, FAST], step_s, total_steps=10**5)
    scene.train(5_000)
    assert scene.log[0] == SPLIT
    assert scene.log[-1] == FAST_SPLIT
    assert PLAIN not in scene.log
    assert "4 splits, no XLA, fast convolution" in scene.messages[0]
    Scene(monkeypatch, tmp_path, [SPLIT, PLAIN, FAST_SPLIT, FAST], step_s, total_steps=10**5).train(5_000)
    again = Scene(monkeypatch, tmp_path, [SPLIT, PLAIN, FAST_SPLIT, FAST], step_s, total_steps=10**5)
    assert again.built == [FAST_SPLIT]


@pytest.mark.parametrize(("steps", "last"), [(250, SPLIT), (5_000, FAST)])
def test_fast_kernels_that_lost_once_are_tried_in_other_parts_by_longer_runs(
    monkeypatch, tmp_path, steps, last
):
    step_s = {SPLIT: 2e-2, PLAIN: 3e-2, FAST_SPLIT: 3e-2, FAST: 1e-2}
    arguments = [SPLIT, PLAIN, FAST_SPLIT, FAST], step_s
    scene = Scene(monkeypatch, tmp_path, *arguments, total_steps=steps, build_s=1.0)
    scene.train(steps)
    assert FAST_SPLIT in scene.log
    assert scene.log[-1] == last


def slow_until(until_s, step_s, *, slow_s):
    """A loop that other programs slow down until some moment."""
    return lambda now: slow_s if now < until_s else step_s


def test_what_was_slow_for_a_moment_has_a_second_look_in_a_long_run(monkeypatch, tmp_path):
    """By then nobody competes; the run alone decides, as it is the first."""
    step_s = {PLAIN: 1e-2, SPLIT: slow_until(1.05, 6e-3, slow_s=1.5e-2)}
    for total_steps, last in ((600, PLAIN), (10_000, SPLIT)):
        scene = Scene(
            monkeypatch, tmp_path / str(total_steps), [PLAIN, SPLIT], step_s, total_steps=total_steps
        )
        scene.train(600)
        assert SPLIT in scene.log
        assert scene.log[-1] == last
        assert len(scene.log) == 600


def test_what_lost_clearly_has_no_second_look(monkeypatch, tmp_path):
    step_s = {PLAIN: 1e-2, SPLIT: slow_until(1.05, 6e-3, slow_s=3e-2)}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000)
    scene.train(600)
    assert scene.log[-1] == PLAIN


def test_what_lost_clearly_while_others_competed_has_one(monkeypatch, tmp_path):
    monkeypatch.setattr(FakeDisturbance, "present", True)
    step_s = {PLAIN: 1e-2, SPLIT: slow_until(1.05, 6e-3, slow_s=3e-2)}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000)
    scene.train(600)
    assert scene.log[-1] == SPLIT


def test_two_looks_in_one_run_are_the_measurement_of_one_run(monkeypatch, tmp_path):
    step_s = {PLAIN: 1e-2, SPLIT: 9e-3}
    for runs in (1, 2):
        Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000).train(600)
        known = PlanCache(tmp_path / "plan.json").load()
        assert {timing.runs for timing in known.values()} == {runs}


def test_runs_beside_others_never_confirm(monkeypatch, tmp_path):
    """However many there were, the first quiet run measures all anew and comes to its own plan."""
    arguments = [SPLIT, PLAIN, FAST_SPLIT, FAST]
    busy = {SPLIT: 1.4e-2, PLAIN: 2e-2, FAST_SPLIT: 5.8e-2, FAST: 5.8e-2}
    quiet = {SPLIT: 1.4e-2, PLAIN: 2e-2, FAST_SPLIT: 8e-3, FAST: 1e-2}
    monkeypatch.setattr(FakeDisturbance, "present", True)
    for _ in range(3):
        scene = Scene(monkeypatch, tmp_path, arguments, busy, total_steps=5_000)
        scene.train(5_000)
        assert scene.log[-1] == SPLIT
        assert not any(timing.confirmed for timing in PlanCache(tmp_path / "plan.json").load().values())
    monkeypatch.setattr(FakeDisturbance, "present", False)
    scene = Scene(monkeypatch, tmp_path, arguments, quiet, total_steps=5_000)
    scene.train(5_000)
    assert scene.log[-1] == FAST_SPLIT


def test_a_quiet_measurement_outlasts_one_beside_others(monkeypatch, tmp_path):
    step_s = {PLAIN: 1e-2, SPLIT: 5e-3}
    Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], step_s, total_steps=10_000).train(600)
    monkeypatch.setattr(FakeDisturbance, "present", True)
    Scene(monkeypatch, tmp_path, [PLAIN, SPLIT], dict.fromkeys(step_s, 3e-2), total_steps=10_000).train(600)
    known = PlanCache(tmp_path / "plan.json").load()
    assert {timing.runs for timing in known.values()} == {1}
    assert known[SPLIT].step_s == pytest.approx(5e-3)


def test_fast_kernels_that_take_long_to_be_timed_need_a_long_run(monkeypatch, tmp_path):
    arguments = [PLAIN, FAST], {PLAIN: 3e-2, FAST: 1e-2}
    for steps, tried in ((500, False), (10**4, True)):
        scene = Scene(monkeypatch, tmp_path / str(steps), *arguments, total_steps=steps, fast_extra_s=30.0)
        scene.train(500)
        assert (FAST in scene.log) == tried


def test_other_fast_kernels_than_those_measured_are_tried(monkeypatch, tmp_path):
    known = {PLAIN: CandidateTiming(0.2, 3e-2, 2), FAST: CandidateTiming(0.3, 4e-2, 2)}
    PlanCache(tmp_path / "plan.json").save(known)
    more = Candidate(fast="convolution, normalization")
    step_s = {PLAIN: 3e-2, more: 1e-2}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, more], step_s, total_steps=10**5)
    scene.train(5_000)
    assert scene.log[-1] == more
    assert set(PlanCache(tmp_path / "plan.json").load()) == {PLAIN, FAST, more}


def test_what_xla_cannot_compile_does_not_end_the_search(monkeypatch, tmp_path):
    error = tf.errors.InvalidArgumentError(None, None, "no XLA kernel")
    step_s = {PLAIN: 1.5e-3, XLA: 1e-4, FAST: 1e-3}
    scene = Scene(monkeypatch, tmp_path, [PLAIN, XLA, FAST], step_s, total_steps=10**6, fails={XLA: error})
    scene.train(10_000)
    assert scene.log[-1] == FAST


def test_it_runs_on_another_thread_and_is_waited_for():
    begin, ran = threading.Event(), []

    def work():
        begin.wait()
        ran.append(threading.current_thread())

    warm_up = WarmUp(work)
    assert not ran
    begin.set()
    assert warm_up.wait() >= 0
    assert warm_up.wait() >= 0, "again"
    assert ran[0] is not threading.current_thread()


def test_what_goes_wrong_is_not_told():
    def work():
        raise RuntimeError("comes again with the first call")

    WarmUp(work).wait()


def test_it_lets_go_of_its_work():
    class Work:
        def __call__(self):
            pass

    work = Work()
    gone = weakref.ref(work)
    warm_up = WarmUp(work)
    warm_up.wait()
    del work
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("wrong", [None, "validation"])
def test_a_loop_is_prepared_once_and_no_thread_is_left(monkeypatch, wrong):
    begun = []

    class Watched(WarmUp):
        def __init__(self, work):
            super().__init__(work)
            begun.append(self)

    monkeypatch.setattr(planner, "WarmUp", Watched)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())

    class Fails(Trainer):
        def validation_step(self, batch):
            raise LookupError("no such metric")

    trainer = (Fails if wrong else Trainer)(model)
    x, y = networks.arrays(64)
    if wrong:
        with pytest.raises(LookupError, match="no such metric"):
            trainer.fit(x, y, verbose=0, validation_data=(x, y))
    else:
        for _ in range(2):
            trainer.fit(x, y, verbose=0, validation_data=(x, y))
    assert len(begun) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "loop-warm-up"]
