"""Input that nobody can mean: one clear line each, and nothing is made of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support.scripts import load_script

from algorithms.runs import files, presets, run
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import _yaml as yaml_text

ROOT = Path(__file__).parents[2]
NAMES = ("ddqn", "CartPole-v1")


@pytest.fixture(scope="module")
def train():
    return load_script("train").main


@pytest.fixture(scope="module")
def plot():
    return load_script("plot").main


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Check that a command is refused in one line, and that it made nothing."""
    monkeypatch.chdir(tmp_path)

    def check(main, *arguments):
        before = sorted(tmp_path.rglob("*"))
        assert main([*map(str, arguments)]) == 2
        text = capsys.readouterr()
        assert len(text.err.splitlines()) == 1
        assert len(text.err) < 2_500
        assert text.out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return text.err

    return check


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--num-updates", 2**63, "less than 2**31"),
        ("--num-updates", 2**31 - 1, "lower `num_updates`"),
        ("--num-envs", 2**31 - 1, "less than 2**31"),
        ("--seed", 2**63, "at most 4294967295"),
        ("--seed", 2**32, "at most 4294967295"),
        ("--seed", "9" * 5_000, "expected a whole number"),
        ("--num-seeds", 2**31 - 1, "at most 1000000"),
        ("--agent.target-update-interval", 2**31, "at most 2147483647"),
        ("--activation", "one_hot", "no activation 'one_hot'"),
        ("--activation", "__class__", "no activation '__class__'"),
        ("--activation", "x" * 100_000, "100002 characters"),
        ("--final-episodes", 10**20, "at most 1000000"),
        ("--num-test-episodes", 10**20, "at most 1000000"),
        ("--gamma", "inf", "gamma=inf"),
        ("--agent.learning-rate", "inf", "finite in 32 bits"),
        ("--agent.learning-rate", "1e39", "finite in 32 bits"),
        ("--sampler.epsilon", "inf", "finite in 32 bits"),
        ("--sampler.initial", "inf", "finite in 32 bits"),
        ("--agent.max-grad-norm", 0, "above 0"),
        ("--agent.max-grad-norm", "1e-400", "above 0"),
        ("--agent.policy-temperature", 0, "above 0"),
        ("--checkpoint-seconds", "inf", "finite in 32 bits"),
        ("--total-steps", 10**400, "less than 2**31"),
        ("--capacity", 2**31, "less than 2**31"),
        ("--hidden-sizes", 2**31, "less than 2**31"),
        ("--out", "a\0b", "null byte"),
        ("--out", "x" * 5_000, "File name too long"),
        ("--out", "loop/run", "cannot be written"),
        ("--config", "/", "Is a directory"),
        ("--config", "-", "No such file"),
        ("--config", "/dev/zero", "is not a file"),
        ("--config", "pipe", "is not a file"),
        ("--config", "loop", "symbolic links"),
    ],
)
def test_options(train, refused, tmp_path, option, value, message):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert message in refused(train, *NAMES, option, value)


LAUGHS = "\n".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9 if i else ['1'])}]" for i in range(10))
MERGES = "\n".join(f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 9 if i else ['{a: 1}'])}]}}" for i in range(10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 64 levels deep"),
        ("{a: " * 5_000, "nested more than 64 levels deep"),
        ("- " * 5_000, "nested more than 64 levels deep"),
        ("&a [*a]", "the alias 'a' is inside its own anchor"),
        ("agent: &a {b: *a}", "the alias 'a' is inside its own anchor"),
        (LAUGHS, "more than 20000 values"),
        (MERGES, "more than 20000 values"),
        ("\n".join(f"k{i}: {i}" for i in range(100_000)), "more than"),
        ("a: !!timestamp x", "timestamp' is not allowed"),
        ("!!set {a, b}", "set' is not allowed"),
        ("a: !!binary aGk=", "binary' is not allowed"),
        ("a: !!bool maybe", "bool' is not allowed"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("a: 0b_", "invalid literal"),
        ("a: " + "9" * 5_000, "4300 digits"),
        ("? [1]\n: 2", "unhashable key"),
        ("a: 1\0", "not allowed"),
        ("3: 4", "3: is unknown"),
        ("agent: {3: 4}", "agent.3: is unknown"),
        ("seed: 0x" + "f" * 20_000, "very many digits"),
        ("agent: {learning_rate: 1e9999}", "finite in 32 bits"),
        ("agent: {learning_rate: '" + "1" * 100_000 + "x'}", "100003 characters"),
        ("agent: {learning_rate: 2001-01-01}", "datetime.date(2001, 1, 1), expected a number"),
        ("agent: {learning_rate: }", "got None, expected a number"),
        ("agent: {max_grad_norm: 0}", "above 0"),
        ("agent: {target_update_interval: 1.5}", "must be a whole number"),
        ("hidden_sizes: [64, .nan]", "expected a list of which each is a whole number"),
        (f"agent: {{{', '.join(f'k{i}: 1' for i in range(5_000))}}}", "k4: is unknown"),
        ("x" * 2**21, "more than 1048576 bytes"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_settings_files(train, refused, tmp_path, text, message):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    begun = time.monotonic()
    assert message in refused(train, *NAMES, "--config", path)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("content", ["seed: 1".encode("utf-16"), b"seed: \xff", b"\x80"])
def test_other_encodings(train, refused, tmp_path, content):
    (tmp_path / "settings.yaml").write_bytes(content)
    assert "cannot be read" in refused(train, *NAMES, "--config", "settings.yaml")


def test_good_settings_files_are_still_read(train, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(run, "start", lambda settings, *_: found.append(settings) or 1 / 0)
    text = "sampler: &s {alpha: 0.5}\nagent: {learning_rate: 1e-3}\nplan: {num_envs: 4}\n"
    (tmp_path / "settings.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())  # as some editors begin a file
    with pytest.raises(ZeroDivisionError):  # what is no one's input is no one line
        train([*NAMES, "--config", str(tmp_path / "settings.yaml"), "--out", str(tmp_path / "run")])
    assert (found[0].sampler["alpha"], found[0].plan.num_envs) == (0.5, 4)
    assert yaml_text.parse("a: &x {b: 1}\nc: {<<: *x, d: 2}\ne: [*x, *x]")["c"] == {"b": 1, "d": 2}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(presets.preset(*NAMES), {})
    return folder.path


def changed(**entries):
    return lambda values: values | entries


def changed_group(group, **entries):
    return lambda values: values | {group: values[group] | entries}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(environment=3), "environment: got 3, expected a string"),
        (changed(environment=None), "environment: got None, expected a string"),
        (changed(algorithm=[]), "algorithm: got [], expected a string"),
        (changed(plan=3), "plan: got 3, expected keys with values"),
        (changed(plan=None), "plan.total_steps: is missing"),
        (changed(agent=[1]), "agent: got [1], expected keys with values"),
        (changed(agent={"learning_rate": None}), "agent.learning_rate: got None, expected a number"),
        (changed(agent={"dueling": 3}), "agent.dueling: got 3, expected true or false"),
        (changed(sampler="x"), "there is no sampler 'x'"),
        (changed(sampler=[]), "sampler: got [], expected keys with values"),
        (changed(buffer=3), "buffer: got 3, expected keys with values"),
        (changed(hidden_sizes=3), "hidden_sizes: got 3, expected a list"),
        (changed(hidden_sizes=["a"]), "hidden_sizes.0: got 'a', expected a list"),
        (changed(normalize="no"), "normalize: got 'no', expected true or false"),
        (changed(seed=1.5), "seed: got 1.5, expected a whole number"),
        (changed(seed=2**70), "at most 4294967295"),
        (changed(other=1), "other: is unknown"),
        (changed_group("plan", num_envs="8"), "plan.num_envs: got '8', expected a whole number"),
        (changed_group("plan", other=1), "plan.other: is unknown"),
        (lambda values: 3, "settings: got 3, expected keys with values"),
        (lambda values: {name: values[name] for name in values if name != "environment"}, "environment: is missing"),
    ],
)
def test_settings_of_a_run(train, plot, refused, folder, change, message):
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    for main, arguments in ((train, ("--resume",)), (plot, ())):
        error = refused(main, *arguments, folder)
        assert message in error
        assert "config.json does not hold" in error


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[" * 100_000, "levels deep"),
        ("config.json", "[" * 500 + "]" * 500, "levels deep"),
        ("config.json", '{"seed": 1, "seed": 2}', "the key 'seed' is given twice"),
        ("config.json", '{"seed": NaN}', "NaN is not a number"),
        ("config.json", '{"seed": %s}' % ("9" * 5_000), "4300 digits"),
        ("config.json", "\0", "does not hold"),
        ("config.json", "", "does not hold"),
        ("options.json", "3", "options: got 3, expected keys with values"),
        ("options.json", "[" * 100_000, "levels deep"),
        ("options.json", '{"final_episodes": "x"}', "expected a whole number"),
        ("options.json", '{"final_episodes": 1e400}', "expected a whole number"),
        ("options.json", '{"checkpoint_seconds": []}', "checkpoint_seconds: got [], expected a number"),
        ("metrics.jsonl", "3\n", "line: got 3"),
        ("metrics.jsonl", "{}\n", "expected steps, and returns"),
        ("metrics.jsonl", '{"steps": "x", "returns": [[1]]}\n', "expected steps, and returns"),
        ("metrics.jsonl", '{"steps": 1, "returns": [1]}\n', "expected steps, and returns"),
        ("metrics.jsonl", '{"steps": 1, "returns": [[]]}\n', "expected steps, and returns"),
        ("metrics.jsonl", '{"steps": 1, "returns": [["a"]]}\n', "expected steps, and returns"),
        ("metrics.jsonl", '{"steps": 1, "returns": [[1]]}\n{"steps": 2, "returns": [[1], [2]]}\n', "expected steps"),
    ],
)  # fmt: skip
def test_files_of_a_run(train, refused, folder, name, text, message):
    (folder / name).write_text(text)
    error = refused(train, "--resume", folder)
    assert message in error


@pytest.mark.parametrize("name", ["options.json", "metrics.jsonl"])
def test_pipes_in_the_place_of_files(train, refused, folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "it is not a file" in refused(train, "--resume", folder)


def test_a_pipe_that_the_shell_has_opened(tmp_path):
    end, other = os.pipe()
    os.write(other, b"seed: 3")
    os.close(other)
    assert files.read_text(f"/dev/fd/{end}") == "seed: 3"
    os.close(end)
