"""Logs of runs, read back."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32_768, 7  # of Weights & Biases' files, which are logs in LevelDB's format


def read_csv(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Return the rows of metrics.csv by series, without what is empty."""
    series: dict[str, list[dict[str, float]]] = {}
    with (folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert None not in row, "a row has more cells than there are columns"
            values = {name: float(text) for name, text in row.items() if name != "series" and text}
            series.setdefault(row["series"], []).append(values)
    return series


def read_tensorboard(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the points of every series and tag, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        reader = EventAccumulator(str(path))
        reader.Reload()
        tags = reader.Tags()["scalars"]
        found[path.name] = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}
    return found


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """Return the history in the only file that was written offline, one dict a step, and first the settings."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    settings, history = {}, []
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return [settings, *history]


def _records(data: bytes) -> list[bytes]:
    records, place = [], HEADER
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # too little room for another part in this block
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + HEADER : place + HEADER + length]
        if kind in (1, 2):  # a whole record, or its first part
            records.append(part)
        else:
            records[-1] += part
        place += HEADER + length
    return records
