"""Draw the pictures of the page on concepts: `python scripts/draw_concepts.py` writes docs/pictures/*.svg.

Lines and text have the color of the text around them, and areas are transparent, so the pictures are legible on light
and on dark pages. As files of their own they follow the color scheme of the reader.
"""

from __future__ import annotations

import math
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 720
BLUE, ORANGE, GREEN, RED = "#4f7fd9", "#e07b2d", "#3a9e6b", "#d9534f"
STYLE = "svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}"


def text(x: float, y: float, words: str, size: int = 14, anchor: str = "middle", weight: str = "normal") -> str:
    """Return one line of text."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style} fill="currentColor">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, color: str = "currentColor", opacity: float = 0.3) -> str:
    """Return a box whose inside is `color`, more or less transparent."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
    return f'<rect {place} fill="{color}" fill-opacity="{opacity:g}" stroke="currentColor" stroke-opacity="0.6"/>'


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through points, with a tip at its end."""
    (x0, y0), (x, y) = points[-2:]
    length = math.hypot(x - x0, y - y0)
    dx, dy = 8 * (x - x0) / length, 8 * (y - y0) / length
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in [*points[:-1], (x - dx, y - dy)])
    tip = f"M{x:g} {y:g}L{x - dx - dy / 2:g} {y - dy + dx / 2:g}L{x - dx + dy / 2:g} {y - dy - dx / 2:g}z"
    stroke = 'fill="none" stroke="currentColor" stroke-width="1.5"'
    return f'<path d="{line}" {stroke}/><path d="{tip}" fill="currentColor"/>'


def svg(height: int, *parts: str) -> str:
    """Return a whole picture."""
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    return "\n".join([start, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def draw_parts() -> str:
    """Return how storage, sampler and view work together."""
    parts = []
    for x, color, title, line in (
        (20, GREEN, "storage", "what is kept"),
        (210, BLUE, "sampler", "which rows start a sample"),
        (400, ORANGE, "view", "what those rows mean"),
        (590, "currentColor", "learner", "yours, or ours"),
    ):
        width = 110 if title == "learner" else 150
        parts += [box(x, 60, width, 70, color, 0.12 if title == "learner" else 0.3)]
        parts += [text(x + width / 2, 90, title, 16, weight="bold"), text(x + width / 2, 113, line, 11)]
    parts += [arrow((170, 95), (208, 95)), arrow((360, 95), (398, 95)), arrow((550, 95), (588, 95))]
    parts += [text(189, 85, "starts", 10), text(379, 85, "draw", 10), text(569, 85, "sample", 10)]
    parts += [arrow((95, 20), (95, 58)), text(105, 36, "add(state, chunk)", 12, "start")]
    parts += [arrow((645, 132), (645, 165), (285, 165), (285, 132))]
    parts += [text(465, 182, "update_priorities(state, handle, errors)", 12)]
    return svg(195, *parts)


def draw_ring() -> str:
    """Return the ring of rows, with its head, ages and a chunk that is written."""
    parts = [text(20, 24, "rows of time (T) ⟶", 12, "start")]
    order = [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]  # the order of writing, by place
    for place, number in enumerate(order):
        for env in range(3):
            color, opacity = (GREEN, 0.75 if number >= 10 else 0.3)
            parts.append(box(100 + 48 * place, 40 + 34 * env, 44, 30, color, opacity))
        parts += [text(122 + 48 * place, 162, f"{11 - number}", 12)]
    parts += [text(92, 60 + 34 * env, f"environment {env}", 11, "end") for env in range(3)]
    parts += [text(92, 162, "age", 12, "end")]
    parts += [
        text(292, 222, "write head: the next chunk overwrites the oldest rows", 12),
        arrow((292, 205), (292, 172)),
    ]
    parts += [text(218, 24, "newest chunk", 12), arrow((218, 28), (218, 38))]
    parts += [text(500, 24, "one slot: one row of one environment", 12), arrow((500, 28), (460, 50))]
    return svg(235, *parts)


def draw_samplers() -> str:
    """Return how likely each start is with four samplers."""
    priorities = [2, 3, 1, 5, 2, 9, 1, 2, 4, 1, 7, 2, 1, 3, 2, 6]
    newest = [0.0] * 10 + [1.0] * 6
    charts = (
        ("Uniform", [1.0] * 16, BLUE),
        ("Prioritized", [float(one) for one in priorities], ORANGE),
        ("Recent(Uniform)", newest, GREEN),
        ("Recent(Prioritized)", [one * weight for one, weight in zip(priorities, newest, strict=True)], RED),
    )
    parts = []
    for number, (title, masses, color) in enumerate(charts):
        left = 20 + 175 * number
        parts += [text(left + 78, 20, title, 13, weight="bold")]
        for at, mass in enumerate(masses):
            height = 300 * mass / sum(masses) if mass else 0
            parts.append(box(left + 9.8 * at, 130 - height, 8, height, color, 0.6) if height else "")
        parts += [arrow((left, 131), (left + 158, 131)), text(left + 78, 150, "oldest to newest start", 11)]
    return svg(160, *filter(None, parts))


def strip(y: float, title: str, rows: str, used: range, colors: dict[int, str]) -> list[str]:
    """Return one line of rows, of which some are used."""
    parts = [text(14, y + 20, title, 12, "start")]
    for at, mark in enumerate(rows):
        color = colors.get(at, BLUE) if at in used else "currentColor"
        parts.append(box(250 + 44 * at, y, 40, 30, color, 0.45 if at in used else 0.06))
        parts.append(text(270 + 44 * at, y + 20, mark, 12))
    return parts


def draw_views() -> str:
    """Return which rows the views read."""
    parts = [text(14, 18, "NStep(n=3) from the row s", 13, "start", "bold")]
    cases = (
        ("three rewards, discount gamma³", "·s····", range(1, 4), "V(next_obs)"),
        ("the task ends: discount 0", "·sx···", range(1, 3), "no bootstrap"),
        ("a time limit: discount gamma²", "·s|···", range(1, 3), "V(last next_obs)"),
        ("the newest rows: discount gamma", "····s", range(4, 5), "V(next_obs)"),
    )
    for number, (title, rows, used, note) in enumerate(cases):
        y = 30 + 42 * number
        parts += strip(y, title, rows, used, {})
        if len(rows) == 5:
            parts += [text(474, y + 20, "write head", 11, "start")]
        parts += [text(545, y + 20, note, 12, "start")]
    y = 30 + 42 * len(cases) + 22
    parts += [text(14, y, "Sequence(length=6, burn_in=2)", 13, "start", "bold")]
    parts += strip(y + 12, "burn-in, then rows to learn from", "bb····", range(6), dict.fromkeys((0, 1), ORANGE))
    parts += [text(545, y + 32, "one memory at its start", 12, "start")]
    return svg(int(y + 60), *parts)


def draw_handles() -> str:
    """Return what becomes of a handle whose row is overwritten."""
    parts = []
    for number, (title, rows, note) in enumerate(
        (
            ("1. sample", ["20", "21", "22", "23"], "handle: position 21"),
            ("2. add", ["24", "25", "22", "23"], "positions 20 and 21 are gone"),
            ("3. update_priorities", ["24", "25", "22", "23"], "21 is not stored: nothing changes"),
        )
    ):
        x = 20 + 235 * number
        parts += [text(x + 100, 22, title, 14, weight="bold")]
        for at, position in enumerate(rows):
            is_new = int(position) >= 24
            is_meant = position == "21" or (number == 2 and at == 1)
            color = GREEN if is_new else ORANGE if position == "21" else "currentColor"
            parts += [box(x + 50 * at, 36, 46, 40, color, 0.5 if is_new or is_meant else 0.08)]
            parts += [text(x + 50 * at + 23, 61, position, 14)]
        parts += [text(x + 100, 98, note, 12)]
    parts += [arrow((225, 56), (250, 56)), arrow((460, 56), (485, 56))]
    return svg(112, *parts)


def draw_episodes() -> str:
    """Return which rows hindsight takes goals from."""
    parts = [text(14, 20, "Goals for the row s", 13, "start", "bold")]
    rows = "····x··s··|···"
    cases = (
        ("future: later in the episode", range(7, 11)),
        ("final: the end of the episode", range(10, 11)),
        ("episode: anywhere in it", range(5, 11)),
    )
    for number, (title, used) in enumerate(cases):
        y = 34 + 40 * number
        parts.append(text(14, y + 19, title, 12, "start"))
        for at, mark in enumerate(rows):
            color, opacity = (ORANGE, 0.55) if at in used else ("currentColor", 0.06)
            parts.append(box(215 + 35 * at, y, 32, 28, color, opacity))
            parts.append(text(231 + 35 * at, y + 19, mark, 13))
    parts += [text(215, 172, "x: the task ended here   |: a time limit ended the episode here", 12, "start")]
    return svg(185, *parts)


DRAWINGS = {
    "parts": draw_parts,
    "ring": draw_ring,
    "samplers": draw_samplers,
    "views": draw_views,
    "handles": draw_handles,
    "episodes": draw_episodes,
}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
