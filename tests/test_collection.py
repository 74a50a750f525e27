"""No test is left out in silence."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_file_of_tests_that_cannot_be_imported_is_an_error(tmp_path):
    (tmp_path / "test_broken.py").write_text("import algorithms.missing\n\n\ndef test_nothing(): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "No module named 'algorithms.missing'" in done.stdout
