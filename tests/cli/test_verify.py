"""`overlap-train verify` and `run`: equal programs are called so, planted differences are found and named."""

import contextlib
import gzip
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from overlap_train._support.differences import Call
from overlap_train.cli import verify
from overlap_train.cli.comparing import Run, differences
from overlap_train.cli.main import main
from overlap_train.cli.recording import Recorder
from overlap_train.cli.report import UsageError
from overlap_train.cli.verify import judge
from overlap_train.monitoring import save_chrome_trace, save_timeline
from overlap_train.records import Span

PLANTED = Path(__file__).parent / "planted.py"

# What was planted in the overlapped run, and where the runs differ first.
FAULTS = {
    "order": "fit 1, epoch 1",
    "metric": "fit 1, epoch 1",
    "other validation rows": "fit 1, epoch 1",
    "missed epoch": "fit 1, Losses losses, number of entries",
    "weights set": "fit 1, epoch 3",
    "early stop": "fit 1, call 6 of callbacks",
    "seed": "fit 1, epoch 1",
    "dropout": "fit 1, epoch 1",
    "learning rate": "fit 1, epoch 1",
    "momentum": "fit 1, epoch 1",
    "no callback": "fit 1, callbacks",
    "no file": "file log.csv",
    "file": "file log.csv",
    "raises": "calls, number of entries",
    "batch size": "fit 1, epoch 1",
    "fewer epochs": "fit 1, call",
    "class weight": "fit 1, epoch 1",
    "sample weight": "fit 1, epoch 1",
    "printed": "line of output 4",
    "no evaluation": "calls, number of entries",
    "other evaluation": "calls, number of entries",
    "hidden note": "fit 1, Prints _note",
    "fit in a hook": "fit 2, ",
    "fit on a thread": "fit 3, ",
    "second optimizer": "fit 2, variable adam",
    "small entry": "file scales.npy",
}


def recorded(directory, by, *arguments, epochs=0, batches=0):
    """What a run of the program in this process did."""
    (directory / "work").mkdir(parents=True)
    with contextlib.chdir(directory / "work"), (directory / "output").open("w") as output:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            recorder = Recorder(directory, by, epochs=epochs, batches=batches)
            recorder.run(str(PLANTED), list(arguments))
            recorder.end()
        output.flush()
        return Run.read(directory, [p for p in (directory / "work").rglob("*") if p.is_file()])


@pytest.fixture(scope="module")
def keras_run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("keras"), "keras", "-", "sound")


def test_a_program_without_differences_is_equal_bit_for_bit(keras_run, tmp_path):
    assert list(differences(keras_run, recorded(tmp_path, "overlap", "-", "sound"))) == []
    assert list(keras_run.counts.values()) == [3, 5, 1, 27, 2, 4]


@pytest.mark.by_default("weights set")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_difference_is_found_and_its_first_place_named(keras_run, tmp_path, fault):
    first = next(differences(keras_run, recorded(tmp_path, "overlap", fault, "planted")))
    assert first.place.startswith(FAULTS[fault])
    assert first.size > 1e-4


@pytest.mark.nightly
def test_a_fit_is_shortened_for_both(tmp_path):
    runs = [recorded(tmp_path / by, by, "-", "sound", epochs=2, batches=2) for by in ("keras", "overlap")]
    assert list(differences(*runs)) == []
    assert runs[0].counts["epochs"] == 4
    assert runs[0].calls[0].result.keys() == runs[1].calls[0].result.keys()


EQUAL = {"loss": math.nan, "array": np.float32([math.nan, 1]), "text": "1.5 s", "more": [1, None]}


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [
        ({"loss": 1.0}, {"loss": 1.0 + 1e-7}, pytest.approx(1e-7, rel=0.1)),
        ({"loss": math.nan}, {"loss": 1.0}, math.inf),
        ({"loss": math.inf}, {"loss": -math.inf}, math.inf),
        ({"loss": 0.0}, {"loss": -0.0}, pytest.approx(0.0, abs=1e-200)),
        ({"text": "step 99999"}, {"text": "step 100000"}, math.inf),
        ({"array": np.complex64([1j])}, {"array": np.complex64([2j])}, pytest.approx(0.5)),
        ({"count": 3}, {"count": 4}, math.inf),
        ({"count": 3}, {}, math.inf),
        ({"text": "epoch 1: 0.50"}, {"text": "epoch 1: 0.51"}, pytest.approx(0.0196, rel=0.1)),
        ({"text": "epoch 1: 0.50"}, {"text": "epoch 1: stopped"}, math.inf),
        ({"array": np.float32([1, 2])}, {"array": np.float32([1, 2.5])}, pytest.approx(0.2)),
        ({"array": np.float32([1, 2])}, {"array": np.float32([1])}, math.inf),
        ({"array": np.int32([1, 2])}, {"array": np.int32([1, 3])}, math.inf),
        (EQUAL, dict(EQUAL), None),
    ],
)
def test_a_difference_has_the_size_of_its_kind(first, second, size):
    found = differences(*(Run(files=content) for content in (first, second)))
    assert [difference.size for difference in found] == ([] if size is None else [size])


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "status"), [("-", 0), ("learning rate", 1)])
def test_the_command_compares_runs_in_processes_and_directories_of_their_own(
    tmp_path, monkeypatch, told, fault, status
):
    source = PLANTED.read_text().replace("sys.argv[2]", "('planted' if BY else 'sound')")
    marks = tmp_path / "marks"
    # Every second run of the program is an overlapped one.
    by = f"""
import os, time
with open({str(marks)!r}, "a+") as file:
    file.write(".")
BY = os.path.getsize({str(marks)!r}) % 2 == 0
"""
    print_time = "\nprint(f'{time.time() - 1e9:.6f}', time.perf_counter_ns() % 1000 / 7)\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text(by + source + print_time)
    monkeypatch.chdir(tmp_path / "here")
    result = told("verify", "train.py", fault, statuses=(status,))["result"]
    if status:
        assert "fit 1, epoch 1" in result["verdict"]["text"]
    else:
        assert result["verdict"]["value"] == "equal"
        assert "line of output" in result["left out"]["text"]  # the time
    assert sorted(path.name for path in Path().iterdir()) == ["train.py"]  # nothing was written here


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "json"])
def test_a_timeline_is_no_result_and_a_picture_of_the_script_is(tmp_path, suffix):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "output").touch()

    def content(draw, seconds):
        draw(work / f"x.{suffix}", [Span("train", "main", 0.0, seconds, 0, 1)])
        return Run.read(tmp_path, [work / f"x.{suffix}"]).files

    ours = save_chrome_trace if suffix == "json" else save_timeline
    assert content(ours, 1.0) == content(ours, 2.0)

    def theirs(path, spans):
        figure = Figure()
        figure.gca().plot([span.end_s for span in spans], "o")
        figure.text(0.5, 0.5, str(spans))
        figure.savefig(path) if suffix != "json" else path.write_text(str(spans))

    assert content(theirs, 1.0) != content(theirs, 2.0)


def _events(at, loss):
    with tf.summary.create_file_writer(f"logs-{at:.0f}").as_default():
        tf.summary.scalar("loss", loss, step=1)


def _h5(at, loss):
    with h5py.File("a.h5", "w") as file:
        file.attrs["loss"], file.attrs["time"] = loss, at
        file.create_dataset("names", data=["cat", f"dog {loss}"], dtype=h5py.string_dtype())


def _archive(at, loss):
    Path("a.csv").write_text(f"{at},{loss}")
    shutil.make_archive("a", "gztar", ".", "a.csv")
    os.remove("a.csv")


# What a run writes: a time of its own, and a loss.
WRITES = {
    "event files": _events,
    "hdf5": _h5,
    "archive": _archive,
    "gzip": lambda at, loss: Path("a.gz").write_bytes(gzip.compress(f"{at} {loss}".encode())),
    "pickle": lambda at, loss: Path("a").write_bytes(pickle.dumps({"at": at, "loss": [np.float32([loss])]})),
    "pickled class": lambda at, loss: Path("a").write_bytes(
        pickle.dumps([at, Span("", "", loss, 1.0, 0, 1)])
    ),
    "array of objects": lambda at, loss: np.save("a.npy", [{"loss": loss}, {"at": at}], allow_pickle=True),
    "folder": lambda at, loss: (os.mkdir(f"{uuid.UUID(int=int(at) ** 4)}"), _h5(at, loss)),
    "name": lambda at, loss: Path(f"{at:.0f}-{loss:.4f}.txt").touch() or Path(f"{loss:.4f}-0001").touch(),
    "name with both": lambda at, loss: Path(f"run-20261130-12{at % 60:04.0f}_acc{loss:.2f}").touch(),
    "link": lambda at, loss: os.symlink(f"run-{at}/best-{loss}", "best"),
    "line": lambda at, loss: Path("../output").write_text(f"run {uuid.UUID(int=int(at))}: accuracy {loss}"),
    "drawn over": lambda at, loss: Path("../output").write_text(f"{at}\rloss {loss}\rloss {loss}"),
    "lines": lambda at, loss: Path("../output").write_text("wait\n" * (int(at) % 99) + f"loss {loss}"),
    "logged": lambda at, loss: Path("../errors").write_text(f"12:00:{at % 60} loss {loss}\n"),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_varies_hides_nothing_beside_it(tmp_path, what):
    runs = []
    for at, loss in ((1e9 + 5.5, 0.5), (1e9 + 27.25, 0.5), (1e9 + 9.75, 0.50001), (1e9 + 9.75, 0.6)):
        (tmp_path / f"run-{len(runs)}" / "work").mkdir(parents=True)
        with contextlib.chdir(tmp_path / f"run-{len(runs)}" / "work"):
            WRITES[what](at, loss if "name" not in what or loss == 0.6 else 0.5)
            written = [path for path in Path.cwd().rglob("*") if path.is_symlink() or path.is_file()]
            runs.append(Run.read(tmp_path / f"run-{len(runs)}", sorted(written)))
    keras, again, sound, planted = runs
    assert judge(1e-4, keras, sound, lambda by: again)[0].value in ("equal", "rounding")
    assert judge(1e-4, keras, planted, lambda by: again)[0].value == "different"


@pytest.mark.parametrize(
    ("by_keras", "overlapped", "equal"),
    [
        ("took 11 s", "took 4 s", True),
        ("took 0.3 min, 1.31 s", "took 0.0 min, 620 ms", True),
        ("1/1 0s 40ms/step", "1/1 1s 1s/step", True),
        ("100%|#| 9/9 [00:01<00:00,  6.3it/s]", "100%|#| 9/9 [00:00<00:00, 12.1it/s]", True),
        ("took 0:00:11", "took 0:00:04", True),
        ("1h 2m 3s", "59m40s", True),
        ("loss 0.5 min 0.2 max 3", "loss 0.6 min 0.2 max 3", False),
        ("top 5 h5", "top 6 h5", False),
        ("a,b", "a;b", False),
        ("one\ntwo", "one\nextra\ntwo", False),
    ],
)
def test_a_measured_time_is_no_result(by_keras, overlapped, equal):
    assert ([*differences(Run(output=by_keras), Run(output=overlapped))] == []) == equal


def test_a_copy_keeps_links_within_it_and_follows_others_once(tmp_path, monkeypatch):
    for folder in ("here/epoch-3", "far"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.bin").write_bytes(b"12")
    links = {"here/latest": "epoch-3", "here/loop": ".", "here/far": "../far", "here/far2": tmp_path / "far"}
    for link, target in {**links, "far/up": "../here", "far/self": "."}.items():
        (tmp_path / link).symlink_to(target)
    verify._copy(tmp_path / "here", tmp_path / "copy")
    copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
    assert copied >= {"epoch-3/a.bin", "latest", "loop", "far/a.bin", "far/up", "far/self", "far2"}
    for link in ("latest", "loop", "far2", "far/up", "far/self"):
        assert (tmp_path / "copy" / link).resolve().is_relative_to(tmp_path / "copy")
    (tmp_path / "here/epoch-3/a.bin").write_bytes(b"")
    monkeypatch.setattr(verify, "_LARGEST_GIB", 0)
    with pytest.raises(UsageError, match="holds more than 0 GiB"):
        verify._require_room(tmp_path / "here")


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("x = np.random.default_rng().random((64, 4))", "unclear"),
        (
            "import time; time.sleep(0.1 * np.random.default_rng().random()); print(time.perf_counter())",
            "equal",
        ),
        ("open('kept.bin', 'r+b').write(b'new')", "equal"),
        (
            "import tensorflow as tf; draw = lambda n: tf.random.uniform([4])\n"
            "rows = tf.data.Dataset.range(64).map(draw, num_parallel_calls=8)\n"
            "x = np.stack(list(rows.as_numpy_iterator()))",
            "equal",
        ),
    ],
)
def test_a_verdict_needs_what_keras_has_twice(tmp_path, monkeypatch, told, line, verdict):
    source = PLANTED.read_text().replace("sys.argv[2]", "'sound'")
    at = source.index("y = (x.sum(1)")
    (tmp_path / "train.py").write_text(f"{source[:at]}{line}\n{source[at:]}")
    (tmp_path / "kept.bin").write_bytes(bytes(20 << 20))
    monkeypatch.chdir(tmp_path)
    found = told("verify", "train.py", "-", statuses=(int(verdict == "unclear"),))
    assert found["result"]["verdict"]["value"] == verdict
    assert (tmp_path / "kept.bin").read_bytes() == bytes(20 << 20)  # a copy was written to


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_each_run_is_started_as_python_starts_a_script(tmp_path):
    (tmp_path / "here/scripts").mkdir(parents=True)
    (tmp_path / "here/queue.py").write_text("raise RuntimeError('of the project, not the program')")
    (tmp_path / "here/scripts/train.py").write_text(
        "import os, queue, subprocess\n"
        "said = input(), subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()\n"
        "said += os.environ['PWD'] == os.getcwd(), *sorted(os.listdir('../..'))\n"
        f"print(*said, file=open({str(tmp_path / 'said')!r}, 'a'))\n"
    )
    git = ["git", "-C", str(tmp_path / "here"), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "overlap_train.cli", "verify", "scripts/train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(verify.__file__).parents[2])}
    subprocess.run(
        command, cwd=tmp_path / "here", env=environment, input="7 epochs\n", text=True, check=False
    )
    assert (tmp_path / "said").read_text() == f"7 epochs {head.strip()} True input run\n" * 2


def test_what_keras_cannot_do_is_refused(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "from overlap_train import Trainer, ValidationPolicy\n"
        "from tests import pools\n"
        "from tests.networks import arrays\n"
        "policy = ValidationPolicy(functions={'one': lambda model: 1.0})\n"
        "Trainer(pools.sequential(), validation=policy).fit(*arrays(), 32)\n"
    )
    recorder = Recorder(tmp_path, "keras", epochs=0, batches=0)
    recorder.run(str(script), [])
    recorder.end()
    assert json.loads((tmp_path / "calls.json").read_text())["refused"] == (
        "Trainer.fit asks for what Keras lacks: functions"
    )


def test_run_overlaps_what_a_script_trains(tmp_path, monkeypatch, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from tests import pools\n"
        "from tests.networks import arrays\n"
        "model = pools.sequential()\n"
        "model.fit(*arrays(), 32, epochs=1, validation_data=arrays(64, 1), verbose=0)\n"
        "from overlap_train import routing\n"
        "print(sys.argv[1:], routing._installed[0].trainer.ended)\n"
        "sys.exit(3)\n"
    )
    argv = list(sys.argv)
    with pytest.raises(SystemExit, match="3"):
        main(["run", str(script), "--rows", "5"])
    assert capsys.readouterr().out.endswith("['--rows', '5'] completed\n")
    assert sys.argv == argv


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_script_that_is_missing_is_said(command, capsys):
    assert main([command, "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drawn", "rows"),
    [
        ("a 0%\n\rb 0%\x1b[A\ra 50%\n\rb 9%\x1b[A\ra 100%\n\rb 100%\n", ["a 100%", "b 100%"]),
        ("a\nb 1\x1b[1A\r\x1b[2Kc\n\x1b[Kd", ["c", "d"]),
        ("\x1b[?25l\x1b[31mred\x1b[0m 1\x1b[5G2\x1b[K\nwait |\b/\b-\b ", ["red 2", "wait"]),
        ("a\nb\nc\x1b[2A\x1b[0Jd\x1b[9Be", ["ade"]),
        ("1/1 32ms/step\b\b\b\r1/1 0s 4s/step\nwindows\r\n\nend", ["1/1 0s 4s/step", "windows", "", "end"]),
    ],
)
def test_of_rows_that_are_drawn_over_the_last_is_compared(drawn, rows):
    assert Run(output=drawn).lines == rows


def _with_losses(*losses, **more):
    logs = [dict(zip(("loss", "mae"), np.atleast_1d(each).tolist(), strict=False)) for each in losses]
    hooks = [("on_epoch_end", epoch, each) for epoch, each in enumerate(logs)]
    files = more.pop("files", {})
    return Run([Call(hooks=hooks, **more)], more.get("raised"), files)


@pytest.mark.parametrize(
    ("ours", "by_keras_again", "ours_again", "verdict"),
    [
        ((0.7, 0.4), [(0.5, 0.4)], (0.7, 0.4), "different"),
        # Threads of the script race: Keras came to the same first epoch, or to all losses, twice by chance.
        ((0.7, 0.4), [(0.5, 0.3)], (0.5, 0.4), "unclear"),
        ((0.7, 0.4), [(0.5, 0.3)], (0.7, 0.4), "different"),
        ((0.7, 0.4), [(0.5, 0.4), (0.5, 0.4), (0.6, 0.4)], (0.5, 0.3), "unclear"),
        ((0.7, 0.4), [(0.5, 0.4)] * 4, (0.5, 0.3), "different"),
        ((0.5, (0.4, 1.1)), [(0.5, (0.3, 1.0))], (0.5, (0.4, 1.1)), "unclear"),
        ((0.5, 0.6), [(0.4, 0.4)], (0.5, 0.6), "unclear"),
        ((0.5001, 0.4), [(0.50004, 0.4)], (0.5001, 0.4), "different"),
    ],
)
def test_what_varies_between_runs_of_either_kind_is_no_difference(ours, by_keras_again, ours_again, verdict):
    others = {"keras": iter(by_keras_again), "overlap": iter([ours_again])}
    runs = [_with_losses(0.5, (0.4, 1.0) if np.ndim(ours[1]) else 0.4), _with_losses(*ours)]
    assert judge(1e-4, *runs, lambda by: _with_losses(*next(others[by])))[0].value == verdict


@pytest.mark.parametrize(("options", "count"), [([], 8), (["--deterministic"], 4)])
def test_operations_are_made_to_repeat_once(monkeypatch, told, options, count):
    numbers = iter(range(99))
    monkeypatch.setattr(verify, "record", lambda *_: _with_losses(float(next(numbers))))
    told("verify", *options, PLANTED, statuses=(1,))
    assert next(numbers) == count


def test_a_difference_beside_a_race_of_keras_counts_only_where_operations_repeat(monkeypatch, told):
    losses = {"keras": iter([(0.5, 0.4), (0.5, 0.3)]), "overlap": iter([(0.7, 0.4)] * 2)}

    def record(directory, by, options):
        return _with_losses(*((0.5, 0.4) if options.deterministic else next(losses[by])))

    monkeypatch.setattr(verify, "record", record)
    result = told("verify", PLANTED)["result"]
    assert [result[name]["value"] for name in ("verdict", "otherwise")] == ["equal", "different"]


@pytest.mark.parametrize(("later_s", "verdict"), [(1.2, "equal"), (20.0, "different")])
def test_a_time_since_a_start_differs_by_as_much_as_in_two_runs_of_keras(later_s, verdict):
    runs = [_with_losses(0.5, files={"log.json": {"at": 11_000.0 + s}}) for s in (0.0, later_s, 1.0)]
    assert judge(1e-4, *runs[:2], lambda by: runs[2])[0].value == verdict


@pytest.mark.parametrize(
    ("with_own", "said"),
    [
        (0.31, "different: {}"),
        (0.300001, "equal up to rounding, which this training magnifies: {}; with Keras's own operations"),
    ],
)
@pytest.mark.parametrize("last", ["epoch 2, on_epoch_end loss", "epoch 1, on_test_end loss"])
def test_where_rounding_began_that_grew_is_said(with_own, said, last):
    losses = {"keras": (0.4, 0.3), "overlap": (0.400001, 0.31), "operations": (0.4, with_own)}
    runs = {by: _with_losses(*each) for by, each in losses.items()}
    if "test" in last:  # the validation of an epoch, whose hook comes before that with the training's loss
        for run, (trained, validated) in zip(runs.values(), losses.values(), strict=True):
            test = ("on_test_end", None, {"loss": validated})
            run.calls[0].hooks = [test, ("on_epoch_end", 0, {"loss": trained})]
    text = judge(1e-4, runs["keras"], runs["overlap"], runs.get)[0].text
    grown = f"fit, {last}: 0.3 by Keras, 0.31 overlapped"
    assert text.startswith(said.format(f"{grown}; it begins with 2.5e-06, fit, epoch 1, on_epoch_end loss"))


def test_rounding_beside_another_learning_rate_is_not_where_that_began():
    runs = {by: _with_losses((0.4, mae)) for by, mae in (("keras", 0.3), ("operations", 0.3))}
    runs["overlap"] = _with_losses((0.5, 0.300001))
    assert judge(1e-4, runs["keras"], runs["overlap"], runs.get)[0].value == "different"


GRAPH = "Error: Graph execution error:\n\nDetected at node {0} defined at\n{1}\nrow 1 [[{{{{node {0}}}}}]]"


@pytest.mark.parametrize(
    ("losses", "text", "verdict"),
    [((), GRAPH, "unclear"), ((0.5,), GRAPH, "equal"), ((), "{0}", "different")],
)
def test_what_is_behind_the_same_error_is_not_compared(losses, text, verdict):
    frame = '  File "a.py", line 1, in f\n\n'
    runs = [
        _with_losses(*losses, raised=said, variables=[("kernel", np.float32([scale, 2]))])
        for said, scale in ((GRAPH.format("m_1/d", frame), 1), (text.format("m/d", frame * 2), 3))
    ]
    assert judge(1e-4, *runs, lambda by: runs[by == "overlap"])[0].value == verdict


def test_entries_are_measured_by_those_of_the_model():
    def run(bias, moment):
        kernel, small = np.full(64, 0.1, np.float32), np.float32([bias, 0])
        values = {"kernel": kernel, "bias": small, "a/k_mean": kernel, "a/b_mean": small * moment}
        return Run([Call(variables=[*values.items()], weights=2, moments=2)])

    sizes = ([d.size for d in differences(run(1e-6, 1e-15), run(bias, 1e-15))] for bias in (2e-6, 1e-3))
    assert [[size > 1e-4 for size in each] for each in sizes] == [[False, False], [True, False]]
