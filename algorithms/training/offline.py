"""Learning from stored rows, without a step in any environment."""

from __future__ import annotations

import functools

import jax

from algorithms.environments import Described
from algorithms.training import learning, loop, train_state
from algorithms.training.off_policy import Replay
from algorithms.training.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree


def train_offline(
    key: jax.Array,
    agent: Agent,
    buffer: Replay,
    buffer_state: PyTree,
    env: Described,
    num_updates: int,
    batch_size: int = 64,
    agent_state: PyTree = None,
    on_nan: str = "warn",
) -> tuple[PyTree, PyTree, Metrics]:
    """Make updates from a data set; consumes `key`. The environment only gives shapes and dtypes, and takes no steps.

    Batches of a `Mixture` come from all buffers except the first, which is for new rows. To continue online, pass the
    states of agent and buffer to `train`.

    Args:
        key: a PRNG key.
        agent: the algorithm.
        buffer: the buffer that the agent learns from.
        buffer_state: the state of the buffer with the data, such as `jb.datasets.from_minari(buffer, name)`.
        env: the environment of the data. It may also be one that is stepped on the host.
        num_updates: the number of updates.
        batch_size: the number of samples in one update.
        agent_state: a state of the agent to continue with. None begins with a new agent, which first observes all
            stored rows.
        on_nan: `skip` leaves out updates whose gradients are not finite; see `Plan`.

    Returns:
        The state of the agent, the state of the buffer with its new priorities, and the means of all updates.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import SAC, Torso, collect, environments, evaluate
        >>> env, buffer = environments.make("Pendulum-v1"), jb.uniform(100)
        >>> agent = SAC(env.action_space, Torso((8,)))
        >>> state = buffer.init(env.transition())
        >>> chunk = jax.tree.map(lambda leaf: jax.numpy.ones((100, 1, *leaf.shape), leaf.dtype), env.transition())
        >>> learned, _, metrics = train_offline(jax.random.key(0), agent, buffer, buffer.add(state, chunk), env, 20)
        >>> returns, _ = evaluate(agent, learned, env, jax.random.key(1), num_episodes=5)
        >>> int(learned.num_updates), returns.shape
        (20, (5,))
    """
    require_integer("train_offline", "num_updates", num_updates, 1)
    plan = Plan(
        0,
        buffer.num_envs,
        update_every=buffer.num_envs,
        num_updates=1,
        mini_batch_size=batch_size,
        test_every=0,
        on_nan=on_nan,
        offline_updates=num_updates,
    )
    key_agent, key_train = split(key)
    state = train_state.before_steps(key_agent, key_train, agent, buffer, env, plan, buffer_state, agent_state)
    learn = functools.partial(learning.learn_offline, agent, buffer, plan=plan)
    names = jax.eval_shape(learn, state.agent, state.buffer, key_train)[2].names
    state = loop.run_offline(state._replace(sums=state.sums.with_names(names)), agent, buffer, plan, num_updates)
    metrics = {name: value for name, value in state.sums.read().items() if not name.startswith("episode")}
    return state.agent, state.buffer, metrics
