"""The hand of all pictures: boxes, words and arrows as SVG, in colours for light and for dark.

A picture is a module of this folder with a function `drawing` that returns the SVG. Draw one, or all of them:

    python docs/pictures/svg.py [NAME ...]
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

HERE = Path(__file__).resolve().parent

# For each class of shape: fill and stroke, light and dark. Words on a shape take the colour of all words.
_COLOURS = {
    "paper": ("#ffffff", "none", "#11161d", "none"),
    "lane": ("#f6f8fa", "#d0d7de", "#171d26", "#30363d"),
    "box": ("#ffffff", "#0969da", "#0d1117", "#58a6ff"),
    "train": ("#b6d4f7", "#1f6fc9", "#1d4f86", "#58a6ff"),
    "validate": ("#f7d9a8", "#b9770e", "#7a4d0c", "#e3a14a"),
    "snapshot": ("#1a7f37", "none", "#3fb950", "none"),
    "idle": ("none", "#8c959f", "none", "#6e7681"),
    "third": ("#cbe8cf", "#1a7f37", "#1c5a2e", "#3fb950"),
    "fourth": ("#e3d3f5", "#7b45b5", "#4c2f73", "#b083f0"),
}
_WORDS = ("#1b1f24", "#e6edf3")
_FAINT = ("#57606a", "#9da7b1")


def _rules(dark: int) -> str:
    shapes = "".join(
        f".{n} {{ fill: {c[2 * dark]}; stroke: {c[2 * dark + 1]} }} " for n, c in _COLOURS.items()
    )
    return (
        f"text {{ fill: {_WORDS[dark]} }} .faint {{ fill: {_FAINT[dark]} }} "
        f".line {{ stroke: {_FAINT[dark]} }} #tip path {{ fill: {_FAINT[dark]} }} {shapes}"
    )


_STYLE = (
    "text { font: 13px system-ui, sans-serif } .small { font-size: 11.5px } .name { font-weight: 600 } "
    ".code { font-family: ui-monospace, monospace; font-size: 11px } "
    ".head { font-size: 14px; font-weight: 600 } "
    ".line { fill: none; stroke-width: 1.4 } .idle { stroke-dasharray: 4 3 } rect { stroke-width: 1.3 } "
    f"{_rules(0)} @media (prefers-color-scheme: dark) {{ {_rules(1)} }}"
)


def rect(
    kind: str, x: float, y: float, width: float, height: float, *, radius: float = 4, title: str = ""
) -> str:
    """Return a rectangle of a kind of `_COLOURS`; a mouse that rests on it is told its title."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
    if not title:
        return f'<rect class="{kind}" {place}/>'
    return f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>'


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    """Return words whose baseline begins, is centred, or ends at a place."""
    ends = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{ends}>{escape(words)}</text>'


def line(*points: tuple[float, float], arrow: bool = False) -> str:
    """Return a line through points, with or without a tip at its end."""
    path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
    return f'<path class="line" d="{path}"{" marker-end=" + quoteattr("url(#tip)") if arrow else ""}/>'


def picture(width: float, height: float, label: str, *parts: str) -> str:
    """Return the whole picture; `label` says to those who cannot see it what it shows."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 Z"/></marker></defs>'
    )
    body = "\n".join((f"<style>{_STYLE}</style>{tip}", rect("paper", 0, 0, width, height, radius=10), *parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f"aria-label={quoteattr(label)}>\n{body}\n</svg>\n"
    )


def names() -> list[str]:
    """Return the names of all pictures."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.name != Path(__file__).name)


if __name__ == "__main__":
    for name in sys.argv[1:] or names():
        (HERE / f"{name}.svg").write_text(importlib.import_module(name).drawing())
