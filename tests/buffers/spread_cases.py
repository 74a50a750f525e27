"""Cases of test_spread_checkpoint.py, for a process with eight devices."""

from __future__ import annotations

import jax
import pytest
from support.bits import assert_same_bits
from support.registry import ALL, BUFFERS, on_tpu
from support.spread import like, material, spread

import jaxrl_buffers as jb
from jaxrl_buffers import checkpoint

KINDS = {name: ALL[name] for name in ("prioritized_n_step", "mix", "episodic")} | {
    "on_tpu": on_tpu(BUFFERS["prioritized_per_env"]),
    "frames": lambda length, num_envs: BUFFERS["frames"](length, num_envs).replace(sampler=jb.Uniform()),
}


@pytest.mark.parametrize("name", KINDS)
def test_8_to_2_to_4_to_1_devices_and_back(name, tmp_path):
    make, data = KINDS[name], material()
    expected = {count: spread(make, count, *data) for count in (8, 2, 4, 1)}
    checkpoint.save(tmp_path / "0", expected[8])
    for number, count in enumerate((2, 4, 1, 8, 1)):
        restored = checkpoint.restore(tmp_path / str(number), like(make, count))
        assert_same_bits(restored, expected[count])
        assert jax.tree.map(lambda leaf: leaf.sharding, restored) == jax.tree.map(
            lambda leaf: leaf.sharding, expected[count]
        )
        checkpoint.save(tmp_path / str(number + 1), restored)
