"""Hazards of going on, comparison by comparison: runs done twice, files made for runs that are there."""

import pytest

from scripts.bench import conv, scheduling, start, zero_copy, zero_copy_training

from .test_zero_copy import hand_over, trained

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


def test_zero_copy(tmp_path, monkeypatch, log, published):
    def prepare(note):
        def hand_overs(sizes, *, budget_s):
            note(f"size {sizes}")
            return [hand_over(way, sizes[0], 9.0, 9.0) for way in ("as_tensor", "convert_to_tensor")]

        def child(way, path):
            note(f"{way} {sum(name.startswith(way) for name in log)}")
            return trained(way)

        monkeypatch.setattr(zero_copy, "measure_hand_overs", hand_overs)
        monkeypatch.setattr(zero_copy_training, "_run_child", child)

    arguments = ["--sizes", "4096", "65536", "--ways", "zero_copy", "trainer", "--repeats=2"]
    arguments += ["--data-gib=0.01", f"--output_dir={tmp_path / 'out'}", f"--folder={tmp_path}"]
    go_on(zero_copy.main, arguments, log, prepare, published)
    assert len(log) == 6


def test_no_file_is_made_where_every_run_is_read_back(tmp_path, monkeypatch):
    run = trained("zero_copy")
    monkeypatch.setattr(zero_copy_training, "_write", lambda *_: pytest.fail("a file was made"))
    found = zero_copy_training.compare_training(
        1 << 60, repeats=2, ways=["zero_copy"], folder=str(tmp_path), kept=lambda key, train: run
    )
    assert found == [run, run]


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
    row = {"requests_per_s": 20.0, "seconds": [1.0], "overhead": 0.0, "cpu_load": 0.0}

    def prepare(note):
        def found(name, value):
            def run():
                note(name)
                return {name: value}

            return run

        works = {
            "simulated": found("costs_simulated", {"mean_absolute_error": 0.1}),
            "measured": found("measured", {"thread_per_network": row, "ours": row}),
        }
        monkeypatch.setattr(scheduling, "_works", lambda *_: works)

    arguments = ["--parts=simulated,measured", f"--output_dir={tmp_path / 'out'}"]
    go_on(scheduling.main, arguments, log, prepare, published)
    assert log == ["costs_simulated", "measured"]
