"""The guides on logs, comparing and sweeps do what they say: what is written below commands and code is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.guides import ROOT, blocks

MADE = {
    "logs": ["runs/logged/metrics.csv", "runs/logged/tensorboard", "runs/logged/wandb", "runs/stopped/result.json"],
    "comparing": ["compare.png", "compare.html", "again.html"],
    "sweeps": ["sweep.png", "sweep.html", "runs/product/agent.learning_rate=0.01,sampler.alpha=0.6/result.json"],
}


@pytest.mark.parametrize("guide", [*MADE])
def test_guides_run(guide, tmp_path, compiled_once):
    """One block after the other, in a folder that has the scripts; `text example` shows what may differ."""
    if guide == "logs":
        pytest.importorskip("tensorboardX")
        pytest.importorskip("wandb")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **compiled_once, "PYTHONPATH": str(ROOT), "PATH": path}
    environment.pop("WANDB_SERVICE", None)
    printed = ""
    for language, mark, text in blocks(guide):
        if language == "text":
            assert mark == "example" or printed == text
            continue
        command = ["bash", "-e", "-c", text] if language == "bash" else [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    for name in MADE[guide]:
        assert (tmp_path / name).exists()
