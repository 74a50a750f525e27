"""The folder of a training run: settings, metrics, checkpoint, result and learning curve.

config.json     the resolved settings
options.json    options that do not change the outcome, which a resumed run keeps; the run from which this one was
                forked; the location of the user's own environment, relative to this folder and absolute
metrics.jsonl   one line per evaluation
metrics.csv, tensorboard/, wandb/  copies of the metrics for other tools, if they are asked for
checkpoint/     the last two saves of the whole state, restored bit for bit; the agent in it is finite
checkpoint_nonfinite/  the same for states whose agent is not finite; a run continues from the later of the two, so
                remove this folder to continue from checkpoint/
saved           a mark that there was a checkpoint once
lock            held by the process that writes to the folder
result.json     the last evaluation
curve.png       returns over steps, mean and confidence band over seeds
priorities.png  how likely the stored starts are drawn; written by the command `plot`
ages.png        how old the drawn samples are; written by the command `plot`

Whatever a run needs to continue is on the disk before other files rely on it. A power cut loses only what was done
since the last checkpoint. Only one run at a time may write to the folder; anybody may read.

If several processes train one run together, process 0 makes and changes all files but the parts of checkpoints that
belong to the devices of other processes. Methods that change files are called by all processes, which go on when the
change is made, or all raise an error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from algorithms.runs import lock as run_lock
from algorithms.runs import old_settings, own_environment, plotting
from algorithms.runs.build import build
from algorithms.runs.files import explain_missing, parse_json, read_text
from algorithms.runs.metrics_file import plain, read_result
from algorithms.runs.run_paths import RunPaths
from algorithms.runs.settings import Settings, differing, require_keys
from jaxrl_buffers import _durable as durable
from jaxrl_buffers import _processes as processes
from jaxrl_buffers import checkpoint
from jaxrl_buffers.types import PyTree


class RunFolder(RunPaths):
    """Reads and writes the files of one run.

    Args:
        path: the folder.
    """

    def create(
        self,
        settings: Settings,
        options: Mapping[str, Any] | None = None,
        begun: tuple[PyTree, Mapping[str, Any]] | None = None,
    ) -> None:
        """Make the folder, which must not exist. After a crash it is either complete or not there.

        Args:
            settings: of the run.
            options: what does not change the outcome.
            begun: the state and the progress to continue from; None to begin from scratch.
        """
        aside = RunFolder(self.path.with_name(f".{self.path.name}.new"))
        kept = own_environment.keep(settings.environment, self.path)
        with contextlib.ExitStack() as stack:

            def make() -> str:
                durable.make_folder(aside.path.absolute())
                text = stack.enter_context(run_lock.lock(aside.path))
                stack.callback(durable.remove_folder, aside.path)  # unless it gets its name in the end
                durable.remove_folder(aside._checkpoint)  # a killed process may have left it
                return text

            try:
                self.require_new()
                text = processes.on_first(processes.job(), make)
                processes.all_or_none(processes.job(), lambda: run_lock.require_seen(aside.path, text))
                aside.change_settings(settings)
                aside.change_options({**(options or {}), **kept})
                if begun is not None:
                    aside.save(begun[0], settings, begun[1])
                processes.on_first(processes.job(), lambda: durable.rename(aside.path, self.path))
            except OSError as error:
                durable.remove_folder(aside.path)
                raise ValueError(f"{self.path} cannot be written ({error.strerror}); choose another folder.") from None

    @processes.by_first
    def require_new(self) -> None:
        """Refuse a folder that exists, or that clearly cannot be made."""
        if self.path.exists():
            raise ValueError(
                f"{self.path} exists already; choose another folder, or continue that run with --resume {self.path}."
            )
        above = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise ValueError(f"{self.path} cannot be written below {above}; choose another folder.")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from writing to the folder; raise `ValueError` if one does."""
        processes.all_or_none(processes.job(), self._require_settings)
        return self._locked()

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        job = processes.job()
        with contextlib.ExitStack() as stack:
            text = processes.on_first(job, lambda: stack.enter_context(run_lock.lock(self.path)))
            processes.all_or_none(job, lambda: run_lock.require_seen(self.path, text))
            yield

    @processes.by_first
    def change_settings(self, settings: Settings) -> None:
        """Write the settings of the run."""
        self._write_settings(settings)

    @processes.by_first
    def keep_settings(self, settings: Settings) -> None:
        """Write the settings of the run if those in the folder differ.

        Only process 0 compares them. A slower process might compare them when they are written, and then wait for
        something else than process 0 does.
        """
        if settings != self.settings():
            self._write_settings(settings)

    def _write_settings(self, settings: Settings) -> None:
        durable.write_text(self._config, json.dumps(settings.to_dict(), indent=2) + "\n")

    @processes.by_first
    def change_options(self, options: Mapping[str, Any]) -> None:
        """Write what does not change the outcome."""
        durable.write_text(self._options, json.dumps(dict(options), indent=2) + "\n")

    def settings(self) -> Settings:
        """Return the settings of the run."""
        self._require_settings()
        text, options = read_text(self._config), self.options()
        try:
            settings = Settings.from_dict(old_settings.current(require_keys("settings", parse_json(text))))
            own_environment.find(settings.environment, self.path, options)
            build(settings)  # refuses what is wrong
            return settings
        except own_environment.NotFound:  # the settings are not at fault
            raise
        except ValueError as error:
            raise ValueError(f"{self._config} does not hold the settings of a run: {error}") from None

    def options(self) -> dict[str, Any]:
        """Return the options with which the run was started."""
        text = read_text(self._options) if self._options.exists() else "{}"
        try:
            return dict(require_keys("options", parse_json(text)))
        except ValueError as error:
            raise ValueError(f"{self._options} does not hold the options of a run: {error}") from None

    def save(self, state: PyTree, settings: Settings, progress: Mapping[str, Any], is_finite: bool = True) -> None:
        """Write a checkpoint of the state, with the progress that the host needs to continue.

        A state whose agent is not finite is saved in another folder, so that the last finite state stays.
        """
        # A run that continues from here does not write these lines again.
        processes.on_first(processes.job(), self._metrics.sync)
        where = self._checkpoint if is_finite else self._nonfinite_checkpoint
        checkpoint.save(where, state, metadata={**progress, "settings": settings.to_dict()})
        self._mark_saved()

    @processes.by_first
    def _mark_saved(self) -> None:
        if not self._saved.exists():
            durable.write_text(self._saved, "")

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint; a run that was saved once must have one.

        Raises:
            ValueError: when it is gone.
        """
        if any(_is_saved(path) for path in (self._checkpoint, self._nonfinite_checkpoint)):
            return True
        if self._saved.exists() or self._result.exists() or self.metrics():
            raise ValueError(
                f"the checkpoint of {self.path} is gone: the run was saved before, but there is none in "
                f"{self._checkpoint}; put it back, or start a new run in another folder."
            )
        return False

    def restore(
        self, like: PyTree | Callable[[dict[str, Any]], PyTree], furthest: bool = False, partial: bool = False
    ) -> tuple[PyTree, dict[str, Any]]:
        """Return the state and the progress of the checkpoint; its settings must be those in the folder.

        Args:
            like: shapes and dtypes of the state, or a function that returns them, given the checkpoint's metadata.
            furthest: take the last state even if its agent is not finite. Otherwise prefer the last finite state.
            partial: read only the leaves of `like`.
        """
        if not self.has_checkpoint:
            raise ValueError(f"{self.path} holds no checkpoint; --resume {self.path} begins the run.")
        try:
            path = self._chosen_checkpoint(furthest)
            state, progress = checkpoint.restore_with_metadata(path, like, self._check_same, partial)
        except FileNotFoundError as error:
            raise ValueError(f"{error}") from None
        return state, {name: value for name, value in progress.items() if name != "settings"}

    def saved_iterations(self) -> dict[Path, int]:
        """Return the iteration of every saved state, by its path."""
        found = {}
        for path in (self._checkpoint, self._nonfinite_checkpoint):
            found |= {step: metadata["iteration"] for step, metadata in checkpoint.metadata_of_steps(path).items()}
        return found

    @processes.by_first
    def go_back(self, iteration: int) -> None:
        """Forget states that were saved after an iteration."""
        for step, saved in self.saved_iterations().items():
            if saved > iteration:
                durable.remove_folder(step)

    def finite_iteration(self) -> int | None:
        """Return the iteration of the last checkpoint whose agent is finite, if there is one."""
        return _iteration(self._checkpoint) if _is_saved(self._checkpoint) else None

    def _chosen_checkpoint(self, furthest: bool) -> Path:
        saved = [path for path in (self._checkpoint, self._nonfinite_checkpoint) if _is_saved(path)]
        return max(saved, key=_iteration) if furthest else saved[0]

    @processes.by_first
    def append(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Add a line of metrics, and return it as it will be read; numbers that are not finite become null."""
        return self._metrics.append(metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, except those at the end that a killed run or a power cut left unreadable."""
        return self._metrics.lines()

    @processes.by_first
    def keep_metrics(self, steps: int, updates: float = math.inf) -> None:
        """Drop lines after the last checkpoint, which was made at `steps` and `updates`."""
        self._metrics.keep(steps, updates)

    @processes.by_first
    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        durable.write_text(self._result, json.dumps(plain(result), indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """Return the result; None before there is one."""
        return read_result(self._result) if self._result.exists() else None

    @processes.by_first
    def draw_curve(self, settings: Settings) -> None:
        """Draw the learning curve of the evaluations so far; do nothing without matplotlib."""
        if importlib.util.find_spec("matplotlib") is not None and (metrics := self.metrics()):
            plotting.draw_curve(metrics, f"{settings.algorithm} on {settings.environment}", self.curve)

    def changed_settings(self, settings: Settings | Mapping[str, Any]) -> list[str]:
        """Return the names of settings whose values differ from those of this run."""
        if not isinstance(settings, Settings):  # from any version: settings that it did not have get their defaults
            settings = Settings.from_dict(old_settings.current(settings))
        return differing(*(json.loads(json.dumps(one.to_dict())) for one in (settings, self.settings())))

    def _check_same(self, metadata: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of other settings; only the length of the run and its devices may differ."""
        saved = metadata.get("settings", {})
        changed = self.changed_settings(saved) if saved else []
        names = [name for name in changed if name not in ("plan.total_steps", "plan.devices")]
        if names:
            raise ValueError(
                f"the checkpoint in {self.path} was saved with other settings: {', '.join(names)}; "
                f"set {self._config.name} back, or start a new run."
            )

    def _require_settings(self) -> None:
        if not self._config.is_file():
            raise ValueError(f"{self.path} is not the folder of a run: {explain_missing(self._config)}")


def _is_saved(path: Path) -> bool:
    return any(path.glob("step_*"))


def _iteration(path: Path) -> int:
    return checkpoint.read_metadata(path)["metadata"]["iteration"]
