"""The policy of a run: a function from observations to actions."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from algorithms.environments import Described
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs import acting, export
from algorithms.runs._observations import Observations
from algorithms.runs.build import build
from algorithms.runs.episodes import Episodes, play
from algorithms.runs.film import Filmed, record
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.watch import num_nonfinite
from algorithms.training.train_state import TrainState
from algorithms.types import Agent
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers.types import PyTree

_act = jax.jit(acting.act, static_argnames=("deterministic",))  # one program for all policies of an agent


class Policy:
    """A function from observations to actions, as compiled code.

    `policy(obs)` returns one action for an observation of the environment's shape, and actions `[N, ...]` for
    observations `[N, ...]`. NumPy arrays give NumPy arrays. JAX arrays give JAX arrays, also inside `jit`. For
    environments of Gymnasium, observations and actions have the form that its `step` returns and takes.

    Args:
        agent: an algorithm.
        state: its state, such as `train(...)[0].agent`.
        env: the environment for which it was trained.

    Example:
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("CartPole-v1")
        >>> agent = DDQN(env.action_space)
        >>> policy = Policy(agent, agent.init(jax.random.key(0), env.obs, env.action_space.example), env)
        >>> policy(np.zeros(4)).shape, policy(np.zeros((3, 4))).shape
        ((), (3,))
    """

    agent: Agent
    state: PyTree
    env: Described

    def __init__(self, agent: Agent, state: PyTree, env: Described):
        self.agent, self.state, self.env = agent, state, env
        self._parameters = jax.tree.map(jnp.asarray, (agent, state))  # moved to the device once, not in every call
        self._observations = Observations(env)
        self._carry = jax.eval_shape(lambda: self.initial_carry())
        self._needs_carry = {flag: acting.needs_carry(agent, flag) for flag in (True, False)}
        self._num_drawn = 0
        self._key = jax.random.key(0)

    def __call__(self, obs: PyTree, deterministic: bool = True, key: jax.Array | int | None = None) -> Any:
        """Return the action for an observation, or actions `[N, ...]` for `N` of them.

        Args:
            obs: one observation, or `[N, ...]`.
            deterministic: True for the best action; False to explore as in training.
            key: a PRNG key or a number, for random actions. Without a key, every call draws new random numbers. A
                policy that is loaded again draws the same sequence.

        Raises:
            ValueError: if actions depend on earlier steps; use `act`.
        """
        if self._needs_carry[bool(deterministic)]:
            raise ValueError(
                "these actions depend on earlier steps; pass a carry from step to step: `carry = "
                "policy.initial_carry()`, then `action, carry = policy.act(obs, carry)` in every step."
            )
        return self.act(obs, None, deterministic=deterministic, key=key)[0]

    def initial_carry(self, num_envs: int | None = None) -> PyTree:
        """Return the carry at the start of an episode, or of `num_envs` episodes side by side."""
        carry = self.agent.initial_carry(1 if num_envs is None else num_envs)
        return _entry(carry, 0) if num_envs is None else carry

    def act(
        self,
        obs: PyTree,
        carry: PyTree,
        is_first: ArrayLike = False,
        deterministic: bool = True,
        key: jax.Array | int | None = None,
    ) -> tuple[Any, PyTree]:
        """Return the action, or actions `[N, ...]`, and what to remember for the next step.

        Args:
            obs: one observation, or `[N, ...]`.
            carry: what the last call returned, or `initial_carry`; None at the start of all episodes.
            is_first: `bool[N]`, or one flag for all: True where an episode begins; there the carry is ignored.
            deterministic: as in `policy(obs)`.
            key: as in `policy(obs)`.
        """
        obs, is_one = self._observations.batched(obs)
        leaves = jax.tree.leaves(obs)
        num_envs = leaves[0].shape[0]
        if carry is None:
            carry = self.agent.initial_carry(num_envs)
        elif is_one:
            carry = jax.tree.map(lambda leaf: leaf[None], carry)
        self._check_carry(carry, num_envs)
        numpy = jnp if isinstance(is_first, jax.Array) else np
        is_first = numpy.broadcast_to(numpy.asarray(is_first, bool), (num_envs,))
        key = self._key if deterministic else self._drawn_key(key, leaves)
        action, carry = _act(*self._parameters, obs, carry, is_first, key, deterministic)
        if not any(isinstance(leaf, jax.Array) for leaf in leaves):
            action = np.asarray(action)
            action = self.env.decode(action) if isinstance(self.env, HostEnvironment) else action
        return (action[0], _entry(carry, 0)) if is_one else (action, carry)

    def evaluate(
        self,
        num_episodes: int = 100,
        deterministic: bool = True,
        key: jax.Array | int = 0,
        max_steps: int | None = None,
    ) -> Episodes:
        """Play complete episodes and return them; call `.summary()` of the result for means and confidence intervals.

        Args:
            num_episodes: how many.
            deterministic: False to explore as in training.
            key: a PRNG key or a number, for all random choices.
            max_steps: the step at which an episode is given up, for environments without a time limit.
        """
        return play(self.agent, self.state, self.env, num_episodes, _as_key(key), deterministic, max_steps)

    def film(
        self,
        path: str | os.PathLike[str],
        deterministic: bool = True,
        key: jax.Array | int = 0,
        max_steps: int | None = None,
    ) -> Filmed:
        """Write a film of one episode, `.gif` or `.mp4`; no window is needed. Return its length and return.

        Args:
            path: the file.
            deterministic: False to explore as in training.
            key: a PRNG key or a number, for all random choices.
            max_steps: the step at which the film ends if the episode has not ended before.
        """
        return record(path, self.agent, self.state, self.env, _as_key(key), deterministic, max_steps)

    def export(self, path: str | os.PathLike[str], deterministic: bool = True) -> None:
        """Write the policy to a file that JAX can run without this library; see `algorithms.runs.export`.

        Args:
            path: the file, such as `policy.jaxexport`.
            deterministic: False for a function that explores as in training, and takes a seed.
        """
        export.save(path, self.agent, self.state, self.env, deterministic)

    def _check_carry(self, carry: PyTree, num_envs: int) -> None:
        """Refuse a carry of the wrong structure or shapes."""
        got = [tuple(leaf.shape) for leaf in jax.tree.leaves(carry)]
        needed = [(num_envs, *leaf.shape) for leaf in jax.tree.leaves(self._carry)]
        if got != needed or jax.tree.structure(carry) != jax.tree.structure(self._carry):
            raise ValueError(
                f"got a carry of shapes {got} where {needed} are needed; begin with `policy.initial_carry()` for one "
                "observation, or `policy.initial_carry(num_envs)`, and hand on what `act` returns."
            )

    def _drawn_key(self, key: jax.Array | int | None, leaves: list[Any]) -> jax.Array:
        if key is not None:
            return _as_key(key)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise ValueError(
                "policy(deterministic=False) needs a `key` inside of jit, or every call would draw the same actions; "
                "pass `key=`."
            )
        self._num_drawn += 1
        return jax.random.fold_in(self._key, self._num_drawn)


def load_policy(run: str | os.PathLike[str], seed: int = 0) -> Policy:
    """Return the policy in a run's last checkpoint that has only finite numbers; the run need not be finished.

    Args:
        run: the folder of the run.
        seed: the index of the seed within the run, counted from 0.

    Raises:
        ValueError: if there is no such run, checkpoint or seed.
    """
    policies = load_policies(run)
    require_integer("load_policy", "seed", seed, 0)
    if seed >= len(policies):
        known = "the seed 0 only" if len(policies) == 1 else f"the seeds 0 to {len(policies) - 1}"
        raise ValueError(f"load_policy(seed={seed}): {run} has {known}.")
    return policies[seed]


def load_policies(run: str | os.PathLike[str]) -> list[Policy]:
    """Return the policies of all seeds of a run; see `load_policy`."""
    folder = RunFolder(run)
    settings = folder.settings()
    agent, _, env, _ = build(settings)
    like = jax.eval_shape(lambda key: agent.init(key, env.obs, env.action_space.example), jax.random.key(0))
    if settings.num_seeds > 1:
        axis = settings.num_seeds
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((axis, *leaf.shape), leaf.dtype), like)
    # Only the agent is read, because the buffer may not fit into memory.
    nothing: Any = ()
    parts = TrainState(like, *[nothing] * (len(TrainState._fields) - 1))
    state = folder.restore(parts, partial=True)[0].agent
    if num_nonfinite(state):
        raise ValueError(f"{folder.path} has no checkpoint whose agent is finite, so there is no policy to load.")
    if settings.num_seeds == 1:
        return [Policy(agent, state, env)]
    return [Policy(agent, _entry(state, index), env) for index in range(settings.num_seeds)]


def _as_key(key: jax.Array | int) -> jax.Array:
    return key if isinstance(key, jax.Array) else jax.random.key(key)


def _entry(values: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], values)
