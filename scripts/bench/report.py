"""One HTML file that shows a comparison and needs nothing beside it: tables, pictures, machine, legend."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from scripts.bench import machine
from scripts.bench.groups import ACCURACY_TOLERANCE, Group
from scripts.bench.results import Results
from scripts.bench.systems import SYSTEMS
from scripts.bench.table import Cells, claim_cells, copy_cells, group_cells, layout, ratio_cells
from scripts.bench.workloads import WORKLOADS

__all__ = ["render_html", "render_text"]

_STYLE = """
:root { color-scheme: light; --ink: #1f2430; --soft: #5b6372; --line: #e3e6ec; --ours: #eef6fc; }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--ink);
  background: #f6f7f9; margin: 0; }
main { max-width: 1200px; margin: 0 auto; padding: 2.5rem 2rem 4rem; background: white; min-height: 100vh; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.8rem 0 .5rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.soft, figcaption { color: var(--soft); font-size: .87rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; margin: .4rem 0 1rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: .4rem; }
tr.ours td { background: var(--ours); }
tr.ours td:first-child { font-weight: 600; }
td.bad { color: #b3261e; font-weight: 600; white-space: normal; text-align: left; }
figure { margin: 1rem 0 1.6rem; }
img { max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); }
"""


def render_text(results: Results) -> str:
    """Returns the tables for a terminal."""
    cores = results.machine["cores"]
    parts = []
    for group in results.groups:
        parts += [f"{group.title}  ({_what(results, group)})", layout(group_cells(group, cores=cores)), ""]
        cells = ratio_cells(group)
        if cells.body:
            parts += [
                "median of paired ratios (median ÷ fastest run) [paired, without time in which nothing ran]",
                layout(cells),
                "",
            ]
    if results.copy_costs:
        parts += [layout(copy_cells(results)), ""]
    claims = claim_cells(results)
    if claims.body:
        parts += [layout(claims), ""]
    parts += [f"note: {note}" for note in results.notes]
    parts.append(machine.one_line(results.machine))
    return "\n".join(parts)


def render_html(results: Results, pictures: Mapping[str, Path]) -> str:
    """Returns the report as one page that loads nothing.

    Args:
        results: the comparison.
        pictures: PNG files by title; they are embedded.
    """
    sections = [_head(results), _claims(results)]
    for title, path in pictures.items():
        if not title.startswith("Load"):
            sections.append(f"<h2>{html.escape(title)}</h2>{_picture(title, path)}")
    if results.copy_costs:
        sections.append(_table(copy_cells(results)))
    sections.append("<h2>Tables</h2>" + "".join(_group(results, group) for group in results.groups))
    loads = {title: path for title, path in pictures.items() if title.startswith("Load")}
    if loads:
        sections.append("<h2>Load over time</h2>")
        sections += [
            f"<h3>{html.escape(title.split(': ', 1)[1])}</h3>{_picture(title, path)}"
            for title, path in loads.items()
        ]
    sections += [_legend(results), _settings(results)]
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>overlap_train: comparison</title><style>{_STYLE}</style></head>"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _head(results: Results) -> str:
    quick = (
        "<p><strong>A quick run:</strong> shrunk data and few repeats. It shows that all works and roughly "
        "how the systems stand; quote the full run.</p>"
        if results.settings.get("quick")
        else ""
    )
    return (
        "<h1>overlap_train against what one would run instead</h1>"
        f'<p class="soft">{html.escape(machine.one_line(results.machine))}</p>{quick}'
    )


def _claims(results: Results) -> str:
    cells = claim_cells(results)
    if not cells.body:
        return ""
    return (
        "<h2>Beside paper P1</h2><p>What the paper reports was measured elsewhere, on other hardware with a "
        "GPU; it stands here for orientation. The two columns to its right are from this machine: the time "
        "saved, 1 minus the median of paired ratios.</p>" + _table(cells)
    )


def _group(results: Results, group: Group) -> str:
    ratio_table = ratio_cells(group)
    shown = ""
    if ratio_table.body:
        shown = (
            '<p class="soft">Time divided by the baseline\'s: median of paired ratios, and in brackets the '
            "median divided by the baseline's fastest run; in square brackets, where it differs, the paired "
            "ratio without the time in which nothing ran. Below 1 is faster.</p>" + _table(ratio_table)
        )
    return (
        f'<h3>{html.escape(group.title)}</h3><p class="soft">{html.escape(_what(results, group))}</p>'
        + _table(group_cells(group, cores=results.machine["cores"]))
        + shown
    )


def _legend(results: Results) -> str:
    ran = [name for name in SYSTEMS if any(run.system == name for run in results.runs)]
    entries = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(SYSTEMS[name].title)}</dd>" for name in ran
    )
    return (
        f"<h2>How to read this</h2><dl>{entries}</dl>"
        "<p>Each run is a process of its own: one epoch that is not timed, then the timed ones. Runs of "
        "all systems take turns, and who begins changes from repeat to repeat. All seconds are for one "
        "epoch with its validation; <em>spread</em> is the fastest and the slowest run, <em>floor</em> the "
        "CPU seconds spread evenly over all cores, <em>hidden</em> the validation that ran beside training. "
        "Peak RSS is of the whole process. An accuracy further than "
        f"{100 * ACCURACY_TOLERANCE:g} points from the reference is marked.</p>"
    )


def _settings(results: Results) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in results.settings.items())
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in results.notes)
    return (
        f'<h2>Settings and notes</h2><p class="soft">{html.escape(settings)}</p><ul class="soft">{notes}</ul>'
    )


def _table(cells: Cells) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in cells.head)
    lines = []
    for row in cells.body:
        kind = ' class="ours"' if row[0].startswith("overlap") else ""
        if row[1].startswith("failed"):
            reason = f'<td class="bad" colspan="{len(row) - 1}">{html.escape(row[1])}</td>'
            lines.append(f"<tr{kind}><td>{html.escape(row[0])}</td>{reason}</tr>")
        else:
            lines.append(f"<tr{kind}>" + "".join(_cell(text) for text in row) + "</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _cell(text: str) -> str:
    return f"<td{' class=bad' if text.endswith('!') else ''}>{html.escape(text)}</td>"


def _picture(title: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></figure>'


def _what(results: Results, group: Group) -> str:
    title = WORKLOADS[group.workload].title if group.workload in WORKLOADS else group.workload
    timed = "from the first epoch on" if results.settings.get("whole") else "after one epoch"
    return f"{title}; data: {results.sources.get(group.workload, 'not recorded')}; timed {timed}"
