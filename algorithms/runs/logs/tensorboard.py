"""Event files for TensorBoard, written by tensorboardX, which needs neither TensorFlow nor PyTorch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from pathlib import Path

from algorithms.runs.logs.points import Point, Writer
from algorithms.runs.settings import Settings
from jaxrl_buffers import _durable as durable

NAME = "tensorboard"


@contextlib.contextmanager
def tensorboard_writer(folder: Path, settings: Settings) -> Generator[Writer]:
    """Write the folder `tensorboard` anew; every series is a run in TensorBoard.

    The time axis shows seconds of training. A resumed run continues to count them.
    """
    # `EventsWriter` writes at once. `SummaryWriter`, which uses it, hands points over to a thread, and its `flush` does
    # not wait for this thread, so a killed process would lose points.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

    files: dict[str, EventsWriter] = {}
    begun: list[float] = []  # the time at which training would have begun if there had been no pauses

    def file_of(series: str) -> EventsWriter:
        if series not in files:
            path = (folder / NAME / series).absolute()
            durable.make_folder(path)
            earlier = sorted(path.glob("events.*"))
            for file in earlier[:-1]:  # the last file stays: an open TensorBoard is still reading it
                file.unlink()
            files[series] = EventsWriter(str(path / "events"))
            # This event makes readers drop the points of this series that they have read.
            files[series].write_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        return files[series]

    def write(point: Point) -> None:
        begun.append(begun[0] if begun else time.time() - point.seconds)
        for series, values in point.series.items():
            tagged = [Summary.Value(tag=tag(name), simple_value=value) for name, value in values.items()]
            event = Event(step=point.position, wall_time=begun[0] + point.seconds, summary=Summary(value=tagged))
            file_of(series).write_event(event)
            file_of(series).flush()

    try:
        yield write
    finally:
        for file in files.values():
            file.close()


def tag(name: str) -> str:
    """Return the name under which TensorBoard shows a metric, in groups.

    Example:
        >>> tag("return"), tag("loss_q"), tag("buffer_fill")
        ('evaluation/return', 'training/loss_q', 'buffer/fill')
    """
    if name.startswith("buffer_"):
        return name.replace("_", "/", 1)
    return f"evaluation/{name}" if name in ("return", "success") else f"training/{name}"
