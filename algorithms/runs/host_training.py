"""`train_on_host`: `algorithms.train` for environments that are stepped on the host."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp

from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs.host_loop import HostLoop
from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, Metrics
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree


def train_on_host(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: HostEnvironment,
    plan: Plan,
    buffer_state: PyTree = None,
    state: TrainState | None = None,
    collect_then_learn: bool = False,
    agent_state: PyTree = None,
    actors: int = 1,
    lock_step: bool | None = None,
) -> tuple[TrainState, Metrics]:
    """Train as `train` does, in environments that are stepped on the host; consumes `key`.

    Args:
        key: a PRNG key.
        agent: the algorithm.
        buffer: the buffer to learn from.
        env: such as `environments.make("gymnasium:HalfCheetah-v5")`.
        plan: how much is collected, learned and tested.
        buffer_state: a buffer state with stored rows, such as offline data; it is used up.
        state: the last state of an earlier call, to continue with its agent, buffer and counters; it is used up.
            Environments begin new episodes, and stored episodes that were not finished count as cut off.
        collect_then_learn: collect and learn one after the other, instead of both at once.
        agent_state: a trained agent, to continue with a new buffer and new counters of steps; see `train`.
        actors: threads that step the environments, each an equal share of them.
        lock_step: the old name of `collect_then_learn`.

    Returns:
        The last state, whose `collector` is (), and the metrics `[E, ...]` of `train`. They include `policy_lag`:
        by how many updates the policy that acted was behind the one that learned, on average.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("gymnasium:CartPole-v1")
        >>> plan = Plan(total_steps=300, start_steps=100, update_every=50, num_updates=1, test_every=100)
        >>> state, metrics = train_on_host(jax.random.key(0), DDQN(env.action_space), jb.uniform(1_000), env, plan)
        >>> metrics["returns"].shape
        (2, 5)
    """
    if lock_step is not None:
        message = (
            "`lock_step` of train_on_host() is now called `collect_then_learn`; "
            "the old name will be removed in version 2."
        )
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        collect_then_learn = lock_step
    key_train, key_test = split(key)
    with HostLoop(agent, buffer, env, plan, collect_then_learn, actors) as host:
        state = host.init(key_train, buffer_state, agent_state) if state is None else host.begin_anew(state)
        history = []
        while (done := int(state.iteration)) < plan.num_iterations:
            _, next_test = plan.interval(done)
            state = host.run(state, next_test - done)
            state, metrics = host.read_metrics(state)
            key_now = fold_in(key_test, plan.num_tests(next_test) - 1)
            returns, _ = host.evaluate(state.agent, key_now, plan.num_test_episodes)
            history.append({**metrics, "returns": returns})
    if not history:
        raise ValueError(f"the state has made all {plan.total_steps} steps of the plan; raise its `total_steps`.")
    return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *history)
