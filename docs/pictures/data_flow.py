"""Draws docs/pictures/data_flow.svg: the way of the data through the rooms, and which threads walk it.

python docs/pictures/data_flow.py
"""

from __future__ import annotations

from pathlib import Path

WIDTH, ROW, BOX_W, BOX_H = 860, 92, 190, 52
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
  .room { font: 11px ui-monospace, monospace; fill: #57606a }
  .lane { fill: #f6f8fa; stroke: #d0d7de } .box { fill: #ffffff; stroke: #0969da; stroke-width: 1.4 }
  .name { font-weight: 600 } path { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#tip) }
  #tip path { fill: #57606a; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .room { fill: #9da7b1 } .lane { fill: #161b22; stroke: #30363d }
    .box { fill: #0d1117; stroke: #58a6ff } path { stroke: #9da7b1 } #tip path { fill: #9da7b1 }
  }
"""
LANES = ["training thread", "validation workers", "training thread, between two calls"]
# Letter, what it is, its room, its lane and its place in the lane.
STAGES = [
    ("A source", "arrays, pipeline, generator", "_data/", 0, 0),
    ("B training", "many steps in each call", "_training/", 0, 1),
    ("C snapshot", "one read for each variable", "_snapshot.py", 0, 2),
    ("D shards", "split between batches", "_data/", 1, 1),
    ("E validation", "compiled calls only", "_validation/", 1, 2),
    ("F results", "in order, merged exactly", "_validation/", 2, 2),
    ("G delivery", "callbacks, with the snapshot", "_callbacks/", 2, 1),
    ("H accounts", "trained, hidden, waited", "monitoring/", 2, 0),
]


def place(lane: int, column: int) -> tuple[int, int]:
    return 200 + column * 218, 14 + lane * (ROW + 10) + (ROW - BOX_H) // 2


def box(name: str, says: str, room: str, lane: int, column: int) -> str:
    x, y = place(lane, column)
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="6"/>'
        f'<text class="name" x="{x + 10}" y="{y + 18}">{name}</text>'
        f'<text class="room" x="{x + BOX_W - 10}" y="{y + 18}" text-anchor="end">{room}</text>'
        f'<text x="{x + 10}" y="{y + 40}" style="font-size: 11.5px">{says}</text>'
    )


def arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Returns an arrow between the boxes at two places, given as lane and column."""
    (x1, y1), (x2, y2) = place(*start), place(*end)
    if start[0] == end[0]:
        forward = x2 > x1
        a, b = (x1 + BOX_W, x2 - 3) if forward else (x1, x2 + BOX_W + 3)
        return f'<path d="M{a} {y1 + BOX_H // 2} L{b} {y2 + BOX_H // 2}"/>'
    a, b = x1 + BOX_W // 2, x2 + BOX_W // 2
    return f'<path d="M{a} {y1 + BOX_H} L{b} {y2 - 3}"/>'


def drawing() -> str:
    lanes = "".join(
        f'<rect class="lane" x="6" y="{14 + n * (ROW + 10)}" width="{WIDTH - 12}" height="{ROW}" rx="8"/>'
        + "".join(
            f'<text x="18" y="{14 + n * (ROW + 10) + ROW // 2 + 4 + 16 * k}">{part.strip()}</text>'
            for k, part in enumerate(name.split(","))
        )
        for n, name in enumerate(LANES)
    )
    ways = [
        ((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 2)), ((1, 1), (1, 2)), ((1, 2), (2, 2)),
        ((2, 2), (2, 1)), ((2, 1), (2, 0)),
    ]  # fmt: skip
    height = 14 + 3 * (ROW + 10)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The way of the data"><style>{STYLE}</style><defs><marker id="tip" viewBox="0 0 8 8" '
        'refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 Z"/>'
        f"</marker></defs>{lanes}{''.join(box(*stage) for stage in STAGES)}"
        f"{''.join(arrow(*way) for way in ways)}</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing())
