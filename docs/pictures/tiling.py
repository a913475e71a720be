"""How Winograd's convolution tiles an image: 4×4 outputs from 6×6 inputs, with 36 products instead of 144."""

from __future__ import annotations

from svg import line, picture, rect, text

_CELL, _TOP = 15, 86


def drawing() -> str:
    return picture(
        880,
        352,
        "The image is read in tiles of six by six pixels that overlap by two. Each tile is transformed into "
        "36 values, each multiplied over the channels with a transformed filter, and transformed back into "
        "four by four outputs.",
        *_image(24, _TOP),
        *_planes(322, _TOP),
        *_outputs(668, _TOP),
        line((222, 171), (308, 171), arrow=True),
        text(265, 162, "transform", anchor="middle", kind="small"),
        line((558, 171), (654, 171), arrow=True),
        text(606, 162, "back, + bias,", anchor="middle", kind="small"),
        text(606, 188, "ReLU", anchor="middle", kind="small"),
        *_sums(24, 308),
    )


def _grid(kind: str, x: float, y: float, columns: int, rows: int, cell: float = _CELL) -> list[str]:
    return [
        rect(kind, x + column * cell, y + row * cell, cell, cell, radius=0)
        for row in range(rows)
        for column in range(columns)
    ]


def _image(x: float, y: float) -> list[str]:
    """The input: 12 × 12 pixels, two neighbouring tiles marked, and what they share."""
    return [
        text(x, y - 46, "1. Input tiles, 6×6", kind="head"),
        text(x, y - 26, "a tile every 4 pixels;", kind="small faint"),
        text(x, y - 10, "neighbours share 2 columns", kind="small faint"),
        *_grid("lane", x, y, 12, 12),
        *_grid("train", x + _CELL, y + 3 * _CELL, 4, 6),
        *_grid("fourth", x + 5 * _CELL, y + 3 * _CELL, 2, 6),
        *_grid("validate", x + 7 * _CELL, y + 3 * _CELL, 4, 6),
    ]


def _planes(x: float, y: float) -> list[str]:
    """The 36 products of matrices: tiles × input channels by input × output channels."""
    parts = [
        text(x, y - 46, "2. 36 matrix products", kind="head"),
        text(x, y - 26, "one for each place in the tile;", kind="small faint"),
        text(x, y - 10, "each sums over the input channels", kind="small faint"),
    ]
    for depth in (3, 2, 1, 0):
        shift, down = 9 * depth, 9 * depth
        parts += [
            rect("train", x - 12 + shift, y + 14 + down, 78, 96, radius=2),
            rect("third", x + 100 + shift, y + 34 + down, 90, 58, radius=2),
        ]
    return [
        *parts,
        text(x + 27, y + 56, "tiles ×", anchor="middle", kind="small"),
        text(x + 27, y + 72, "channels in", anchor="middle", kind="small"),
        text(x + 83, y + 68, "×", anchor="middle", kind="head"),
        text(x + 145, y + 58, "channels in ×", anchor="middle", kind="small"),
        text(x + 145, y + 74, "channels out", anchor="middle", kind="small"),
        text(x - 12, y + 164, "as many tiles at a time as the core's L2 holds", kind="small faint"),
    ]


def _outputs(x: float, y: float) -> list[str]:
    return [
        text(x, y - 46, "3. Output tiles, 4×4", kind="head"),
        text(x, y - 26, "next to each other;", kind="small faint"),
        text(x, y - 10, "each pixel is written once", kind="small faint"),
        *_grid("lane", x, y, 12, 12),
        *_grid("train", x, y + 4 * _CELL, 4, 4),
        *_grid("validate", x + 4 * _CELL, y + 4 * _CELL, 4, 4),
    ]


def _sums(x: float, y: float) -> list[str]:
    return [
        text(
            x,
            y,
            "A quarter of the multiplications: for a tile of outputs and a pair of channels 6 · 6 = 36",
            kind="name",
        ),
        text(
            x,
            y + 20,
            'instead of 4 · 4 · 3 · 3 = 144. 3×3 filters, stride 1: algorithm="winograd", F(4×4, 3×3).',
        ),
    ]
