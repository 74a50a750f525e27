"""The guides on logs, comparing and sweeps do what they say: what is written below commands and code is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guides import Reader

MADE = {
    "logs": ["runs/logged/metrics.csv", "runs/logged/tensorboard", "runs/logged/wandb", "runs/stopped/result.json"],
    "comparing": ["compare.png", "compare.html", "again.html"],
    "sweeps": ["sweep.png", "sweep.html", "runs/product/agent.learning_rate=0.01,sampler.alpha=0.6/result.json"],
}


@pytest.mark.parametrize("guide", [*MADE])
def test_guides_run(guide, tmp_path, monkeypatch, compiled_once):
    if guide == "logs":
        pytest.importorskip("tensorboardX")
        pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    Reader(guide).follow()
    for name in MADE[guide]:
        assert Path(name).exists()
