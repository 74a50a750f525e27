"""Inputs for train.py and plot.py, most of them bad; fuzz_input.py tries them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.runs import presets
from algorithms.runs.command_options import options_of_run, options_of_settings
from algorithms.runs.run_folder import RunFolder

ZERO_IS_GOOD = {"start_steps", "test_every", "seed", "burn_in", "target_update_interval", "annealing_updates"}
ZERO_IS_GOOD |= {"offline_updates"}
ZERO_IS_BAD = {"max_grad_norm", "policy_temperature"}  # numbers that are not integers and must not be 0
NO_NUMBERS = ("x", "", "1.5.2", "--1", "0x1p3", "1,5", "nan nan", "½", "9" * 5_000 + "x")
BAD_WHOLE = (*NO_NUMBERS, "1.5", "nan", "inf", "1e3", "-1", str(2**63), str(10**400), "9" * 5_000)
BAD_NUMBERS = (*NO_NUMBERS, "nan", "inf", "-inf", "1e400", "1e39", "-1e400")
BAD_NAMES = ("nonsense", "", "__class__", "x" * 10_000, "None", "\x1b[31m", "Ünfug", "uniform ", "a\nb")
BAD_VALUES: dict[type, tuple[Any, ...]] = {
    bool: (3, "x", [], None, 0.5, {}),
    int: ("x", 1.5, [], {}, True, None, 2**63, -1, "3", 10**400),
    float: ("x", [], {}, True, None, math.inf, -math.inf, 10**400, [0.5]),
    str: (3, [], {}, None, True, "nonsense", "", "x" * 10_000, 0.5),
    list: (3, "x", {}, None, ["a"], [0], [-1], [1.5], [[1]], [2**31], [None]),
    dict: (3, "x", [], [1], True, 0.5, ""),
}
GOOD_LINE = {"steps": 100, "returns": [[1.0, 2.0]]}


class Case(NamedTuple):
    """One input."""

    kind: str
    arguments: list[str]
    script: str = "train"
    is_good: bool = False


class Cases:
    """Makes inputs in the present folder. Every bad input is a good one in which one thing is certainly wrong.

    Args:
        rng: what everything is drawn from.
    """

    def __init__(self, rng: random.Random):
        self.rng = rng

    def bad_line(self) -> Case:
        """Break one thing of a command line."""
        names = self.rng.choice([*presets.PRESETS])
        ways = (self._bad_value,) * 6 + (self._bad_path, self._bad_words)
        kind, words = self.rng.choice(ways)(*names)
        return Case(f"line: {kind}", words)

    def _bad_value(self, *names: str) -> tuple[str, list[str]]:
        option, value = self.rng.choice(self._options(*names))
        name = option.split(".")[-1]
        values: tuple[Any, ...] = BAD_NAMES
        if isinstance(value, bool):
            return "a flag with a value", [*names, f"--{option}".replace("_", "-"), "maybe"]
        if isinstance(value, (tuple, int)):
            values = (*BAD_WHOLE, *(() if name in ZERO_IS_GOOD else ("0",)))
        elif isinstance(value, float) or value is None:
            values = (*BAD_NUMBERS, *(("0", "1e-400", "1e-50") if name in ZERO_IS_BAD else ()))
        words = [f"--{option}".replace("_", "-"), self.rng.choice(values)]
        words = ["=".join(words)] if self.rng.random() < 0.3 else words
        return f"a bad {'name' if values is BAD_NAMES else 'number'}", [*names, *self._harmless(option), *words]

    def _options(self, *names: str) -> list[tuple[str, Any]]:
        """Return every option of a pair, with a value of its type."""
        options = [*options_of_settings(presets.read(*names)).values(), *options_of_run().values()]
        examples: dict[Any, Any] = {bool: True, int: 1, float: 1.0, str: "word"}
        return [(option.name, examples[option.kind]) for option in options if option.kind in examples]

    def _harmless(self, option: str) -> list[str]:
        good = [["--seed", "3"], ["--num-seeds", "2"], ["--anneal"], ["--out", "run"], ["--averaging", "0.5"]]
        words = self.rng.sample(good, self.rng.randrange(3))
        return [word for pair in words if pair[0] != f"--{option}".replace("_", "-") for word in pair]

    def _bad_path(self, *names: str) -> tuple[str, list[str]]:
        out = ["existing", "file", "file/run", "x" * 5_000, "a\0b", ".", "", "/dev/null/run", "loop/run", "/proc/run"]
        config = ["missing", "existing", "loop", "pipe", "file/x", "-", "/dev/zero", "", "a\0b", "x" * 5_000]
        option, paths = self.rng.choice([("--out", out), ("--config", config), ("--resume", config)])
        return "a bad path", [*([] if option == "--resume" else names), option, self.rng.choice(paths)]

    def _bad_words(self, *names: str) -> tuple[str, list[str]]:
        words = [
            [*names, "--unknown", "3"],
            [*names, "extra"],
            [*names, "--seed"],
            [*names, "--sampler"],
            [*names, "--fresh-environments"],
            [*names, "--num-envs", "16", "--update-every", "17"],
            [*names, "--total-steps", "1"],
            [*names, "--capacity", "1"] if names[0] != "ppo" else [*names, "--n-step", "2"],
            [names[0]],
            [names[0], "Pendulum-v0"],
            [names[0], ""],
            ["", names[1]],
            [names[0][:-1], names[1]],
            ["--seed", "3", *names],
            [names[0], "--seed", "3", "Acrobot-v1"],
            [*names, "--hindsight", "future"] if "CartPole" in names[1] else [*names, "--memory", "gruu"],
            ["--resume", "existing", "--seed", "3"],
            ["--resume", "missing", "--final-episodes", "x"],
        ]
        return "bad words", self.rng.choice(words)

    @contextlib.contextmanager
    def bad_file(self) -> Iterator[Case]:
        """Break one thing of a file."""
        ways = (self._bad_settings, self._bad_text, self._bad_config, self._bad_config_text, self._bad_lines)
        folder = RunFolder("run")
        names = self.rng.choice([*presets.PRESETS])
        folder.create(presets.preset(*names), {"final_episodes": 3})
        path, content, kind = self.rng.choice(ways)(*names)
        if isinstance(content, str):
            path.write_bytes(content.encode("utf-8", "surrogatepass"))
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.unlink(missing_ok=True)
            content(path)
        if path.name == "settings.yaml":
            is_text = kind.endswith("text")  # else the file has names of its own
            case = Case(kind, [*(names if is_text else ()), "--config", str(path)])
        elif path.name != "options.json" and self.rng.random() < 0.5:
            case = Case(f"{kind}, drawn", ["run"], "plot")
        else:
            case = Case(f"{kind}, resumed", ["--resume", "run"])
        try:
            yield case
        finally:
            _remove(Path("run"))
            _remove(Path("settings.yaml"))

    def _bad_settings(self, *names: str) -> tuple[Path, str, str]:
        text = json.dumps(self._broken(presets.preset(*names).to_dict()))
        text = text.replace("-Infinity", "-.inf").replace("Infinity", ".inf")
        return Path("settings.yaml"), text, "settings.yaml: a bad value"

    def _bad_config(self, *names: str) -> tuple[Path, str, str]:
        if self.rng.random() < 0.3:
            option = self.rng.choice([("final_episodes", 100), ("checkpoint_seconds", 60.0)])
            wrong = [value for value in BAD_VALUES[type(option[1])] if value is not None]
            values: Any = {option[0]: self.rng.choice(wrong)}
            values = values if self.rng.random() < 0.8 else self.rng.choice(BAD_VALUES[dict])
            return Path("run/options.json"), json.dumps(values), "options.json: a bad value"
        values = self._broken(json.loads(Path("run/config.json").read_text()))
        return Path("run/config.json"), json.dumps(values), "config.json: a bad value"

    def _broken(self, values: Any) -> Any:
        """Change one value, at any depth, to an invalid one."""
        name = self.rng.choice([*values, "unknown"])
        value = values.get(name)
        if name == "unknown":
            return {**values, name: self.rng.choice((1, "x", None, []))}
        if isinstance(value, dict) and value and self.rng.random() < 0.8:
            return {**values, name: self._broken(value)}
        return {**values, name: self.rng.choice(BAD_VALUES[list if isinstance(value, tuple) else type(value)])}

    def _bad_text(self, *names: str) -> tuple[Path, Any, str]:
        nine = ", ".join(["*{0}"] * 9)
        bomb = "\n".join(f"x{i}: &x{i} [{nine.format(f'x{i - 1}') if i else 1}]" for i in range(12))
        texts: list[Any] = [
            "[" * self.rng.randint(100, 100_000),
            "{a: " * self.rng.randint(100, 9_000),
            "agent: &a {b: *a}",
            "&a [*a]",
            bomb,
            "\n".join(f"k{i}: {i}" for i in range(self.rng.choice((50, 30_000)))),
            "seed: 1\nseed: 2",
            "seed: !!int 3",
            "!!python/object/apply:os.system ['true']",
            "seed: !!binary aGk=",
            "seed: 2001-01-01",
            "seed: 2001-99-99",
            "seed: 0x" + "f" * self.rng.randint(20, 20_000),
            "gamma: 1e9999",
            "gamma: *unknown",
            "3: 4",
            "[1, 2]: 3",
            "? {a: 1}\n: 2",
            "seed: 1\n---\nseed: 2",
            "\tseed: 1",
            "seed: [",
            "seed: \0",
            "x" * 2**21,
            *self._bad_files(),
        ]
        return Path("settings.yaml"), self.rng.choice(texts), "settings.yaml: a bad text"

    def _bad_config_text(self, *names: str) -> tuple[Path, Any, str]:
        name = self.rng.choice(("config.json", "options.json"))
        texts: list[Any] = [
            "[" * self.rng.randint(100, 100_000),
            '{"a": ' * 500 + "1" + "}" * 500,
            '{"seed": 1, "seed": 2}',
            '{"seed": NaN}',
            f'{{"seed": {"9" * 5_000}}}',
            "\0",
            "{",
            "",
            "[]",
            "null",
            "\ufeff\ufeff{}",
            *self._bad_files(),
        ]
        return Path("run") / name, self.rng.choice(texts), f"{name}: a bad text"

    def _bad_lines(self, *names: str) -> tuple[Path, Any, str]:
        lines: list[Any] = [
            *({**GOOD_LINE, "steps": value} for value in ("x", None, [], {}, True)),
            *({**GOOD_LINE, "returns": value} for value in (3, None, [], [[]], [1.0], {}, "x", [["a"]], [[True]])),
            *({name: GOOD_LINE[name]} for name in GOOD_LINE),
            {**GOOD_LINE, "returns": [[1.0], [2.0]]},
            *(3, [], "x", None, {}),
        ]
        lines = [json.dumps(GOOD_LINE), json.dumps(self.rng.choice(lines))]
        texts: list[Any] = ["\n".join(lines) + "\n"] * 4
        texts += ["{\n", "[" * 10_000 + "\n", '{"steps": NaN}\n', *self._bad_files()]
        return Path("run/metrics.jsonl"), self.rng.choice(texts), "metrics.jsonl: a bad line"

    def _bad_files(self) -> list[bytes | Callable[[Path], None]]:
        """Return contents that are no text, and functions that make something else than a file."""
        return [
            b"\xff" + self.rng.randbytes(20),
            '{"seed": 1, "größe": 2}'.encode("utf-16"),
            lambda path: path.mkdir(),
            lambda path: os.mkfifo(path),
            lambda path: path.symlink_to("/dev/zero"),
        ]

    @contextlib.contextmanager
    def good(self) -> Iterator[Case]:
        """Make an input that is good for sure."""
        names = self.rng.choice([*presets.PRESETS])
        given = [
            ["--num-envs", str(self.rng.randint(1, 1_000))],
            ["--seed", str(self.rng.randrange(2**32))],
            ["--num-seeds=2"],
            ["--agent.max-grad-norm", "1e-3"],
            ["--checkpoint-seconds", "0"],
            ["--num-test-episodes", "1_0"],
            ["--activation", "silu"],
        ]
        words = [word for one in self.rng.sample(given, self.rng.randrange(1, 4)) for word in one]
        values = {"plan": {"num_envs": self.rng.randint(1, 1_000)}, "gamma": self.rng.random(), "anneal": True}
        Path("settings.yaml").write_text(json.dumps(values))
        words += self.rng.choice(([], ["--config", "settings.yaml"]))
        try:
            yield Case("good", [*names, *words, "--out", "run"], is_good=True)
        finally:
            _remove(Path("run"))
            _remove(Path("settings.yaml"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
