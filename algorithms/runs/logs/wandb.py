"""The log for Weights & Biases. With WANDB_MODE=offline it needs neither account nor network."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Generator
from pathlib import Path

from algorithms.runs.logs.points import Point, Writer
from algorithms.runs.settings import Settings
from jaxrl_buffers import _durable as durable

NAME = "wandb"
PROJECT = "jaxrl-buffers"  # unless WANDB_PROJECT says otherwise


def require_login() -> None:
    """Refuse to write online if nobody is logged in; `wandb` would ask for it in the middle of the progress bar."""
    import wandb

    with _explained():
        is_offline = wandb.setup().settings.mode in ("offline", "dryrun", "disabled")
        is_ready = is_offline or wandb.login(verify=False, prompt=False)
    if not is_ready:
        raise ValueError(
            "--log wandb: nobody is logged in to Weights & Biases; call `wandb login`, or set WANDB_MODE=offline and "
            "send the run later with `wandb sync`, or choose --log none."
        )


@contextlib.contextmanager
def wandb_writer(folder: Path, settings: Settings) -> Generator[Writer]:
    """Continue the same run of Weights & Biases as earlier processes; keys are `mean/return`, `seed0/return` ...

    Offline, the files in the folder `wandb` are written anew. Online, points that the server already has are not sent
    again. They cannot be deleted there, and a resumed run computes the same points.
    """
    import wandb

    identity = _identity(folder / NAME)
    for earlier in (folder / NAME).glob(f"offline-run-*-{identity}"):
        durable.remove_folder(earlier)
    with _explained():
        run = wandb.init(
            dir=folder,
            id=identity,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", folder.absolute().name),
            config=settings.to_dict(),
            # `wandb` prints nothing into the progress bar, and does not touch other runs of this process.
            settings=wandb.Settings(silent=True, console="off", reinit="create_new"),
        )

    def write(point: Point) -> None:
        if point.position >= run.step:
            named = (
                (f"{series}/{name}", value) for series in point.series for name, value in point.series[series].items()
            )
            run.log(dict(named), step=point.position, commit=True)  # or the row waits for the next one

    has_failed = True
    try:
        yield write
        has_failed = False
    finally:
        run.finish(exit_code=int(has_failed))


@contextlib.contextmanager
def _explained() -> Generator[None]:
    """Turn what `wandb` says about accounts and networks into errors for people."""
    import wandb

    try:
        yield
    except wandb.Error as error:
        raise ValueError(f"--log wandb: {error}; WANDB_MODE=offline needs no account, --log none no wandb.") from None


def _identity(folder: Path) -> str:
    """Return the name by which Weights & Biases knows the run: chosen once, then kept."""
    path = folder / "id"
    if not path.exists():
        durable.make_folder(folder.absolute())
        durable.write_text(path, uuid.uuid4().hex[:12])
    return path.read_text().strip()
