"""Streams of transitions as the arrays of a data set."""

from __future__ import annotations

import jax
import numpy as np

import jaxrl_buffers as jb

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def stream(lengths, ends, has_next=True, first=0):
    """Return episodes of the given lengths as arrays; `ends` says how each one ends: "terminal", "timeout" or "open".

    Observations count up, and go on by ten from one episode to the next.
    """
    columns = {name: [] for name in KEYS}
    obs = first
    for length, end in zip(lengths, ends, strict=True):
        for step in range(length):
            is_last = step == length - 1
            columns["observations"].append([obs, -obs])
            columns["actions"].append(obs % 3)
            columns["rewards"].append(obs / 2)
            columns["terminals"].append(is_last and end == "terminal")
            columns["timeouts"].append(is_last and end == "timeout")
            columns["next_observations"].append([obs + 1, -obs - 1])
            obs += 1
        obs += 10
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    arrays["observations"] = arrays["observations"].astype(np.float32)
    arrays["next_observations"] = arrays["next_observations"].astype(np.float32)
    return arrays if has_next else {name: arrays[name] for name in KEYS[:-1]}


def modeled(arrays):
    """Return the rows that a state should hold as (obs, terminated, truncated, next_obs), by looking at each row."""
    rows, num_rows = [], len(arrays["rewards"])
    for number in range(num_rows):
        obs, terminal = arrays["observations"][number, 0], bool(arrays["terminals"][number])
        timeout = bool(arrays["timeouts"][number])
        if "next_observations" in arrays:
            rows.append([obs, terminal, timeout, arrays["next_observations"][number, 0]])
        elif terminal:
            rows.append([obs, True, timeout, obs])
        elif timeout or number == num_rows - 1:
            if rows and number and not arrays["terminals"][number - 1] and not arrays["timeouts"][number - 1]:
                rows[-1][2] = True
        else:
            rows.append([obs, False, False, arrays["observations"][number + 1, 0]])
    if not rows[-1][1]:
        rows[-1][2] = True
    return rows


def stored(buffer, state):
    rows = jb.host.gather_all(buffer, state)
    columns = (rows.obs[:, 0, 0], rows.terminated[:, 0], rows.truncated[:, 0], rows.next_obs[:, 0, 0])
    return [list(row) for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True)]


def nested(arrays):
    def split(obs):
        return {"place": obs[:, :1], "camera": np.stack([obs, obs], axis=-1).astype(np.uint8)}

    return arrays | {name: split(arrays[name]) for name in ("observations", "next_observations") if name in arrays}


def assert_same_arrays(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, left), right in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=str(path))
