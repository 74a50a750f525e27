"""What a settings file gives, and how a bad one is refused."""

from __future__ import annotations

import yaml

from algorithms.runs import command_line
from algorithms.runs.build import build


def settings_of(*arguments):
    """Return the settings with which the script would train."""
    settings = command_line.parse([*map(str, arguments)]).settings
    build(settings)
    return settings


def check_refused(script, capsys, tmp_path, values, message):
    """Check that the script says what is wrong with a file in one line, and leaves no run behind."""
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values))
    assert script.main(["--config", str(path), "--out", str(tmp_path / "run")]) == 2
    text = capsys.readouterr()
    assert message in text.err
    assert len(text.err.splitlines()) == 1
    assert text.out == ""
    assert not (tmp_path / "run").exists()
