"""Pages as a real browser shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def screenshot(page: Path, width: int, height: int, folder: Path) -> np.ndarray:
    """Return the pixels `[height, width, 3]` of a page, each between 0 and 1."""
    from matplotlib.image import imread

    path = folder / f"{width}.png"
    options = (
        f"--user-data-dir={folder / f'browser{width}'}",
        f"--window-size={width},{height}",
        f"--screenshot={path}",
    )
    subprocess.run([BROWSER, *FLAGS, *options, page.as_uri()], check=True, capture_output=True, timeout=120)
    return imread(path)[..., :3]


def as_a_browser_sees(page: Path, folder: Path) -> str:
    """Return the HTML of a page after its scripts have run."""
    options = (f"--user-data-dir={folder / 'browser_of_text'}", "--virtual-time-budget=2000", "--dump-dom")
    done = subprocess.run([BROWSER, *FLAGS, *options, page.as_uri()], check=True, capture_output=True, timeout=120)
    return done.stdout.decode()


def count_pixels(pixels: np.ndarray, color: str) -> int:
    """Return how many pixels have a color such as `#0072b2`."""
    wanted = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return int(np.sum(np.all(np.abs(pixels - wanted) < 0.5 / 255, axis=-1)))
