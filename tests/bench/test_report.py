"""Hazards of reports: markup in data, pictures that lie beside the file, failed systems that vanish."""

import re
from dataclasses import replace

from scripts.bench import plots, report
from scripts.bench.table import Cells, layout


def test_page_loads_nothing_and_shows_every_picture(found, tmp_path):
    pictures = plots.save_plots(found, tmp_path)
    page = report.render_html(found, pictures)
    assert {path.name for path in pictures.values()} == {"epochs.png", "copies.png", "load-mnist-6.png"}
    assert page.count('src="data:image/png;base64,') == len(pictures)
    assert not re.findall(r"(?:src|href)=(?!\"data:)", page)


def test_text_from_data_is_escaped(found, tmp_path):
    page = report.render_html(found, {})
    assert "MNIST &lt;of a test&gt;" in page
    assert "<of a test>" not in page


def test_failed_system_stays_in_the_table_with_its_reason(found):
    broken = replace(
        found,
        runs=tuple(replace(r, error="signal 9") if r.system == "paper" else r for r in found.runs),
    )
    assert re.search(
        r"<td>paper</td><td class=\"bad\" colspan=\"\d+\">failed: signal 9", report.render_html(broken, {})
    )
    assert "failed: signal 9" in report.render_text(broken)


def test_system_that_learned_less_is_marked(found):
    weak = replace(
        found, runs=tuple(replace(r, val_accuracy=0.9) if r.system == "overlap" else r for r in found.runs)
    )
    assert "90.00% differs!" in report.render_text(weak)
    assert "<td class=bad>90.00% differs!" in report.render_html(weak, {})


def test_paper_stands_beside_ours_marked_as_measured_elsewhere(found):
    text = report.render_text(found)
    line = next(line for line in text.splitlines() if line.startswith("MNIST, 6 threads"))
    assert "measured elsewhere (Core i5-9500, GTX 1650)" in text
    assert re.search(r"10\.8% +4\.0% +40\.0%$", line)


def test_claims_of_what_was_not_measured_are_left_out(found):
    other = replace(found, runs=tuple(replace(run, workload="text") for run in found.runs))
    for shown in (report.render_text(other), report.render_html(other, {})):
        assert "MNIST of 1 GB" not in shown
        assert "measured elsewhere" not in shown
    assert "MNIST of 1 GB" not in report.render_text(found)


def test_comparison_without_a_single_figure_still_reports(found, tmp_path):
    empty = replace(found, runs=tuple(replace(run, error="no") for run in found.runs), copy_costs=())
    assert plots.save_plots(empty, tmp_path) == {}
    assert "failed: no" in report.render_text(empty)


def test_gpu_load_is_drawn_where_there_is_one(found, tmp_path):
    runs = tuple(
        replace(run, load=tuple(replace(s, gpu_percent=(50.0,)) for s in run.load)) for run in found.runs
    )
    assert "load-mnist-6.png" in {
        p.name for p in plots.save_plots(replace(found, runs=runs), tmp_path).values()
    }


def test_columns_line_up():
    lines = layout(Cells(("name", "s"), (("a", "1.00"), ("longer", "10.00")))).splitlines()
    assert [len(line) for line in lines] == [13, 13, 13, 13]
