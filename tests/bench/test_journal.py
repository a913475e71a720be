"""Hazards of going on: a torn line, runs of another machine, a run done twice, two writers."""

import itertools
import json

import pytest

from scripts.bench import conv, scheduling, start, zero_copy
from scripts.bench import journal as journals
from scripts.bench import zero_copy as comparison
from scripts.bench.journal import Journal, OtherMachineError

ARGUMENTS = {"epochs": 2, "systems": ("a", "b")}


@pytest.fixture
def begin(tmp_path, machine):
    """Opens the journal of one folder."""
    return lambda **changes: Journal(
        tmp_path,
        machine | changes.pop("machine", {}),
        ARGUMENTS | changes.pop("arguments", {}),
        resume=changes.pop("resume", True),
    )


def counted():
    """Returns what counts how often it is called."""
    numbers = itertools.count(1)
    return lambda: next(numbers)


def test_a_finished_run_is_read_back_and_not_run_again(begin):
    work = counted()
    with begin() as first:
        assert [first.once(key, work) for key in ("one", "two", "one")] == [1, 2, 1]
    with begin() as again:
        assert again.found == 2
        assert [again.once(key, work) for key in ("two", "three", "one")] == [2, 3, 1]
        with pytest.raises(ValueError, match="another comparison is writing"):
            begin()
        # A value that does not count is worked out again, and the new one kept.
        assert again.once("one", work, keep=lambda value: value > 1) == 4
    with begin() as third:
        assert third.once("one", work, keep=lambda value: value > 1) == 4


@pytest.mark.parametrize("left", [b'{"key": "two", "val', b"{", b'{"key": "two", "value": 2, "others": 0.0}'])
def test_a_line_that_a_kill_has_torn_is_dropped(begin, tmp_path, left):
    work = counted()
    with begin() as first:
        first.once("one", work)
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(left)
    with begin() as again:
        assert [again.once(key, work) for key in ("one", "two")] == [1, 2]
    with begin() as third:
        assert third.found == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine": {"cores": 6}}, "cores was 2, is 6"),
        ({"machine": {"cpu": "Another"}}, "CPU was 'An Imagined CPU', is 'Another'"),
        ({"machine": {"versions": {"tensorflow": "2.22.0"}}}, "tensorflow was '2.21.0', is '2.22.0'"),
        ({"machine": {"versions": {}}}, "tensorflow was '2.21.0', is None"),
        ({"arguments": {"epochs": 3}}, "--epochs was 2, is 3"),
        ({"arguments": {"systems": ("a",)}}, "--systems was"),
        ({"arguments": {"new": 1}}, "--new was None, is 1"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused_by_name(begin, tmp_path, changes, named, monkeypatch):
    with begin() as first:
        first.once("one", counted())
    before = (tmp_path / "runs.jsonl").read_bytes()
    with pytest.raises(OtherMachineError, match="without --resume") as refused:
        begin(**changes)
    assert named in str(refused.value)
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    (tmp_path / "overlap_train").mkdir()
    (tmp_path / "overlap_train" / "step.py").write_text("")
    monkeypatch.setattr(journals, "_ROOT", tmp_path)
    with pytest.raises(OtherMachineError, match="the sources' digest was"):
        begin()


def test_beginning_anew_puts_the_finished_runs_aside(begin, tmp_path):
    with begin() as first:
        first.once("one", counted())
    kept = (tmp_path / "runs.jsonl").read_bytes()
    with begin(resume=False) as anew:
        assert anew.found == 0
    assert (tmp_path / "runs.before.jsonl").read_bytes() == kept
    begin(resume=False).close()  # one without a finished run is nothing to keep
    assert (tmp_path / "runs.before.jsonl").read_bytes() == kept


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((text, "is no journal") for text in ("[]\n", "{}\n", "no JSON\n", '{"format": 1}\n{"key": 1}\n')),
        ('{"format": 2, "identity": {}, "machine": {}}\n', "has format 2; this is 1"),
    ],
)
def test_what_is_no_journal_or_of_another_format_is_refused_and_left_alone(begin, tmp_path, content, reason):
    (tmp_path / "runs.jsonl").write_text(content)
    with pytest.raises(ValueError, match=reason):
        begin()
    assert (tmp_path / "runs.jsonl").read_text() == content


@pytest.mark.parametrize(
    ("busy_s", "line"),
    [(3.5, "used 1.25 cores during a run on average, and 1.25 at most"), (0.0, "is not known")],
)
def test_what_else_ran_is_said_or_said_to_be_unknown(begin, monkeypatch, busy_s, line):
    clock = {"s": 0.0}
    monkeypatch.setattr(journals.time, "monotonic", lambda: 2 * clock["s"])
    monkeypatch.setattr(journals, "_own_s", lambda: clock["s"])
    monkeypatch.setattr(journals, "_busy_s", lambda: busy_s * clock["s"])

    def work():
        clock["s"] += 1.0

    with begin() as first:
        assert first.others_line == "How busy other programs kept the machine is not known."
        first.once("at once", lambda: None)
        first.once("one", work)
        assert line in first.others_line
        cores = first.other_cores
    assert cores == (1.25 if busy_s else None)
    with begin() as again:
        assert line in again.others_line
        assert again.other_cores == cores


RATIOS = {"winograd": 2.0, "direct": 1.0, "auto": 2.0}
LAYERS = {
    "summary": {"forward": {"auto": {"geometric_mean": 2.0, "minimum": 1.5}}},
    "rows": [
        {"direction": way, "ratio": RATIOS, "height": 8, "width": 8, "inputs": 64, "outputs": 64}
        | {"kernel": 3, "stride": 1}
        for way in ("forward", "input_gradient", "filter_gradient")
    ],
}
STEP = {"model": "unet", "batch": 1, "ratio": 2.5, "convolution_share": 0.9, "amdahl_bound": 10.0}
STEP |= {"milliseconds_quartiles": {"stock": [9, 10, 11], "ours": [3, 4, 5]}}


@pytest.fixture
def log():
    """The names of the runs that were run."""
    return []


def cut_off(log, count):
    """Returns what notes a run, and is interrupted at the one of a number."""

    def note(name):
        if len(log) == count:
            raise KeyboardInterrupt
        log.append(name)

    return note


def go_on(main, arguments, log, prepare, published):
    """Cuts a comparison off at each of its runs in turn, and lets it go on; each run has to be run once."""
    for count in range(20):
        prepare(cut_off(log, count))
        try:
            main([*arguments, "--resume"])
            break
        except KeyboardInterrupt:
            assert len(log) == count
    assert len(log) == len(set(log)) > 1
    before = list(log)
    main([*arguments, "--resume", "--publish"])
    assert log == before
    (page,) = published.glob("2*.md")
    assert f"({page.name})" in (published / "index.md").read_text()
    assert all((published / link).exists() for link in _links(page.read_text()))


def _links(text):
    return [part.split(")")[0] for part in text.split("](")[1:] if not part.startswith(("..", "http"))]


@pytest.mark.nightly
def test_zero_copy(tmp_path, monkeypatch, log, published):
    def prepare(note):
        def hand_overs(sizes, *, budget_s):
            note(f"size {sizes}")
            return [hand_over(way, sizes[0], 9.0, 9.0) for way in ("as_tensor", "convert_to_tensor")]

        monkeypatch.setattr(zero_copy, "measure_hand_overs", hand_overs)

    arguments = ["--sizes", "4096", "65536", f"--output_dir={tmp_path / 'out'}"]
    go_on(zero_copy.main, arguments, log, prepare, published)
    assert len(log) == 2


def test_start(tmp_path, monkeypatch, log, published):
    warmed = []

    def prepare(note):
        def child(system, network, epochs, cache, options):
            if system == "ours" and cache not in warmed:
                warmed.append(cache)
                return {}
            note(f"{system} {network} {epochs} {len(log)}")
            return {"seconds": {"first": 1.0, "second": 2.0}, "peak_mib": 100.0, "messages": []}

        monkeypatch.setattr(start, "_run", child)

    arguments = ["--networks=mlp", "--repeats=2", "--caches=warm", "--calls=first,second"]
    go_on(start.main, [*arguments, f"--output_dir={tmp_path / 'out'}"], log, prepare, published)
    assert len(log) == 4
    assert len(warmed) == 3, "each call that runs ours has to warm its cache"


def test_conv(tmp_path, monkeypatch, log, published):
    def prepare(note):
        def child(*job):
            note(" ".join(job))
            return STEP if job[0].endswith("conv_training") else LAYERS

        monkeypatch.setattr(conv.children, "run_module", child)

    go_on(conv.main, [f"--output_dir={tmp_path / 'out'}"], log, prepare, published)
    assert len(log) == 10
    assert len(list((tmp_path / "out").glob("*-*.json"))) == 10


def test_scheduling(tmp_path, monkeypatch, log, published):
    row = {"requests_per_s": 20.0, "seconds": [1.0], "overhead": 0.0}

    def prepare(note):
        def found(name, value):
            def run():
                note(name)
                return {name: value}

            return run

        works = {
            "simulated": found("costs_measured", {"mean_absolute_error": 0.1}),
            "measured": found("measured", {"thread_each": row, "ours": row}),
        }
        monkeypatch.setattr(scheduling, "_works", lambda *_: works)

    arguments = ["--parts=simulated,measured", f"--output_dir={tmp_path / 'out'}"]
    go_on(scheduling.main, arguments, log, prepare, published)
    assert log == ["costs_measured", "measured"]


def hand_over(way, size_bytes, median_us, first_operation_us):
    figures = {"median_us": median_us, "p10_us": 1.0, "p90_us": 1.0, "first_operation_us": first_operation_us}
    return {"way": way, "size_bytes": size_bytes, "repeats": 1, "bytes_copied": 0, **figures}


def test_hand_overs_count_what_they_copy():
    copied = {
        row["way"]: row["bytes_copied"] for row in comparison.measure_hand_overs((8192,), budget_s=0.01)
    }
    copies, shares = ("convert_to_tensor", "as_tensor_misaligned"), ("as_tensor", "mapped_buffer")
    assert copied == dict.fromkeys(copies, 8192) | dict.fromkeys(shares, 0)


def test_summary_relates_the_right_figures():
    large = 16 << 20
    hand_overs = [hand_over("as_tensor", 4096, 10.0, 30.0), hand_over("as_tensor", large, 20.0, 40.0)]
    hand_overs.append(hand_over("convert_to_tensor", large, 2000.0, 2400.0))
    assert list(comparison.summarize(hand_overs).values()) == [2.0, 100.0, 60.0]
    assert comparison.summarize([]) == {}


def test_comparison_writes_its_results(tmp_path, capsys):
    arguments = ["--output_dir", str(tmp_path), "--sizes", "4096", "--budget-s", "0.01"]
    assert comparison.main(arguments) == 0
    assert json.loads((tmp_path / "zero_copy.json").read_text())["hand_overs"]
    assert "4 KiB, `as_tensor_misaligned`" in capsys.readouterr().out
