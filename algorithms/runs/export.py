"""Policies as files that JAX alone can run.

A file holds one function with its parameters, in the portable form of `jax.export`. It runs on CPU, CUDA and TPU, and
takes any number of observations:

    action = call(obs)                                   # obs [N, ...]
    action, carry = call(obs, carry, is_first)           # if actions depend on earlier steps
    ... = call(..., seed)                                # if they are random: uint32, another one in every step

For environments of Gymnasium, actions are those that `step` takes. Observations are encoded as `env.encode` does it: a
choice among `n` values is `n` booleans, one of which is True.

`carry` is a tuple of arrays. Their values do not matter where `is_first`, `bool[N]`, says that an episode begins.
`jax.export.deserialize` reads such a file. JAX promises that the version that wrote the file can read it, and so can
the versions of the following six months.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from algorithms.environments import Described
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs import acting
from algorithms.types import Agent
from jaxrl_buffers.types import PyTree

PLATFORMS = ("cpu", "cuda", "tpu")
MAX_OBSERVATIONS = 2**20  # at once; random numbers are counted in 32 bits


def save(
    path: str | os.PathLike[str], agent: Agent, state: PyTree, env: Described, deterministic: bool = True
) -> export.Exported:
    """Write a policy to a file; return what was written."""
    if importlib.util.find_spec("flatbuffers") is None:
        raise ValueError(
            "files of policies need flatbuffers, which is not installed: pip install 'jaxrl-buffers[export]'."
        )
    exported = exported_policy(agent, state, env, deterministic)
    Path(path).write_bytes(exported.serialize())
    return exported


def exported_policy(agent: Agent, state: PyTree, env: Described, deterministic: bool = True) -> export.Exported:
    """Return a policy as a function that can be written to a file."""
    has_carry = acting.needs_carry(agent, deterministic)
    structure = jax.tree.structure(jax.eval_shape(lambda: agent.initial_carry(1)))

    def call(obs: PyTree, *others: Any) -> Any:
        num_envs = jax.tree.leaves(obs)[0].shape[0]
        carry, is_first = agent.initial_carry(num_envs), jnp.ones(num_envs, bool)
        if has_carry:
            carry, is_first = jax.tree.unflatten(structure, others[0]), others[1]
        key = jax.random.key(0 if deterministic else others[-1])
        action, carry = acting.act(agent, state, obs, carry, is_first, key, deterministic)
        action = env.decode(action) if isinstance(env, HostEnvironment) else action
        return (action, tuple(jax.tree.leaves(carry))) if has_carry else action

    arguments = _arguments(agent, env, has_carry, deterministic)
    return export.export(jax.jit(call), platforms=PLATFORMS)(*arguments)


def _arguments(agent: Agent, env: Described, has_carry: bool, deterministic: bool) -> list[Any]:
    """Return the shapes and dtypes of the arguments, for a symbolic number `N` of observations with an upper limit."""
    (num_envs,) = export.symbolic_shape("n", constraints=[f"n <= {MAX_OBSERVATIONS}"])

    def many(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_envs, *like.shape), like.dtype)

    arguments: list[Any] = [jax.tree.map(many, env.obs)]
    if has_carry:
        carry = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], agent.initial_carry(1)))
        arguments += [tuple(map(many, jax.tree.leaves(carry))), jax.ShapeDtypeStruct((num_envs,), jnp.bool_)]
    return arguments if deterministic else [*arguments, jax.ShapeDtypeStruct((), jnp.uint32)]
