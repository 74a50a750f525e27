"""The compiled parts of training on the host, for one seed or for many side by side.

Arrays that come from environments have one axis for the environments of all seeds, beginning with those of the first
seed. States have a leading axis of seeds if there is more than one seed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.environments import Finished
from algorithms.environments.described import with_info
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs.host_evaluation import act_in_test
from algorithms.training import loop, structure, train_state
from algorithms.training.collection import where_env
from algorithms.training.keys import iteration_keys
from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Mixture, ReplayBuffer, Transition
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree

LAST = 2**31 - 1  # larger than the number of any iteration, and of the keys of any split
PolicyLeaves = list[jax.Array]  # the leaves of an agent's state that acting reads
Part = tuple[Transition, Finished]  # the rows of one actor, leaves [K, S n, ...]
FLAG: Any = jax.ShapeDtypeStruct((), jnp.bool_)


class HostCompiled:
    """The compiled functions of training on the host: beginning, acting, storing, learning, testing.

    Args:
        agent: the algorithm.
        buffer: the buffer to learn from.
        env: the environment.
        plan: how much is collected and learned.
        num_actors: the number of threads that step the environments, each an equal part of them.
        num_seeds: `S`; None for one seed, without an axis.
    """

    def __init__(
        self,
        agent: Agent,
        buffer: Buffer,
        env: HostEnvironment,
        plan: Plan,
        num_actors: int = 1,
        num_seeds: int | None = None,
    ):
        self._agent, self._buffer, self._env, self._plan = agent, buffer, env, plan
        self._num_actors, self._num_seeds = num_actors, num_seeds
        self.begin = jax.jit(self._over_seeds(self._begin))
        self.adopt = jax.jit(self._over_seeds(self._adopt, (0, 0, 0, None)), donate_argnums=(1, 2))
        self.mark_break = jax.jit(self._over_seeds(self._mark_break), donate_argnums=0)
        self.key_of_restart = jax.jit(self._over_seeds(lambda key, i: fold_in(fold_in(key, i), LAST)))
        self.split = jax.jit(self._over_seeds(lambda key: tuple(split(key))))
        self.fold_in = jax.jit(self._over_seeds(fold_in, (0, None)))
        self.warm_up_keys = jax.jit(self._over_seeds(self._warm_up_keys))
        self.seeds = jax.jit(self._over_seeds(lambda key: jax.random.bits(key, dtype=jnp.uint32) >> 1))
        # Copies what acting reads of an agent's state, because `learn` takes over the memory of the state itself.
        self.policy = jax.jit(lambda agent_state: [jnp.copy(leaf) for leaf in self._read_by_acting(agent_state)])
        self.act = jax.jit(self._act)
        self.act_first = jax.jit(self._act_first, static_argnames="random")
        self.store = jax.jit(self._store, donate_argnums=0)
        self.key_of_first_steps = jax.jit(self._over_seeds(train_state.key_of_first_steps))
        self.learn_offline = jax.jit(self._learn_offline, static_argnums=1, donate_argnums=0)
        self.learn = jax.jit(self._learn, donate_argnums=0)  # without the key: actors still read it
        self.test = jax.jit(self._test, static_argnames="deterministic")
        self.read = jax.jit(self._over_seeds(lambda state: train_state.read_metrics(state, plan)[1]))
        self.stats = jax.jit(self._over_seeds(self._stats))

    def compile(self) -> None:
        """Compile acting and learning now. Without this, the first iterations would compile them."""
        num_envs, num_rows = self._plan.num_envs // self._num_actors, self._plan.update_every // self._plan.num_envs
        axis, seeds = (num_envs * (self._num_seeds or 1),), () if self._num_seeds is None else (self._num_seeds,)
        number: Any = jax.ShapeDtypeStruct((), jnp.int32)
        key = _with_axes(jax.eval_shape(lambda: jax.random.key(0)), seeds)
        state = self.shapes(key)._replace(key=())
        policy, carry = jax.eval_shape(self._read_by_acting, state.agent), jax.eval_shape(self.first_carry, num_envs)
        inputs = policy, key, number, number, _with_axes(self._env.obs, axis), carry, _with_axes(FLAG, axis), number
        self.act.lower(*inputs).compile()
        extras = jax.tree.map(lambda leaf: _with_axes(leaf, (num_rows,)), jax.eval_shape(self._act, *inputs)[2])
        rows = _with_axes(self._env.transition(), (num_rows, *axis))
        rows = rows._replace(extras=with_info(extras, rows.extras))
        reward = self._env.transition().reward
        finished = _with_axes(Finished(FLAG, reward, number), (num_rows, *axis))
        self.learn.lower(state, key, [(rows, finished)] * self._num_actors).compile()

    def shapes(self, key: jax.Array) -> TrainState:
        """Return the shapes and dtypes of states; `key` is as for `begin`."""

        def begin(key: jax.Array) -> TrainState:
            # The other parts of a mixture hold data before the run begins.
            row = structure.row(self._agent, self._env)
            return self._begin(key, self._buffer.init(row) if isinstance(self._buffer, Mixture) else None)[0]

        return jax.eval_shape(self._over_seeds(begin), key)

    def first_carry(self, num_envs: int) -> PyTree:
        """Return what acting remembers at the start of episodes."""
        carry = self._agent.initial_carry(num_envs)
        if self._num_seeds is None:
            return carry
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self._num_seeds, *leaf.shape)), carry)

    def _over_seeds(self, function: Callable[..., Any], in_axes: int | tuple[int | None, ...] = 0) -> Any:
        return function if self._num_seeds is None else jax.vmap(function, in_axes)

    def _by_seed(self, values: PyTree, axis: int = 0) -> PyTree:
        """Turn leaves `[..., S n, ...]` into `[S, ..., n, ...]`."""
        if self._num_seeds is None:
            return values

        def one(leaf: jax.Array) -> jax.Array:
            shape = *leaf.shape[:axis], self._num_seeds, -1, *leaf.shape[axis + 1 :]
            return jnp.moveaxis(leaf.reshape(shape), axis, 0)

        return jax.tree.map(one, values)

    def _flat(self, values: PyTree) -> PyTree:
        """Turn leaves `[S, n, ...]` into `[S n, ...]`."""
        if self._num_seeds is None:
            return values
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), values)

    def _begin(
        self, key: jax.Array, buffer_state: PyTree = None, agent_state: PyTree = None
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        """Return the state before any step, and the keys of the environments and of the first steps."""
        key_agent, key_env, key_warmup, key_train = split(key, 4)
        agent, buffer, env, plan = self._agent, self._buffer, self._env, self._plan
        agent_state = jax.tree.map(jnp.copy, agent_state)  # the caller keeps the original
        state = train_state.before_steps(key_agent, key_train, agent, buffer, env, plan, buffer_state, agent_state)
        names = train_state.metric_names(state, agent, buffer, env, plan)
        return state._replace(sums=state.sums.with_names(names)), key_env, key_warmup

    def _warm_up_keys(self, key: jax.Array) -> jax.Array:
        """Return a key for every row that is collected before learning, the same keys as in `loop.init`."""
        return split(split(key)[0], (self._plan.start_steps // self._plan.num_envs, 1))[:, 0]

    def _adopt(self, key: jax.Array, agent_state: PyTree, buffer_state: PyTree, iteration: jax.Array) -> TrainState:
        parts = self._agent, self._buffer, self._env, self._plan
        return train_state.taken_over(key, agent_state, buffer_state, iteration, *parts)

    def _mark_break(self, buffer_state: PyTree) -> PyTree:
        # A rollout is empty here: its rows were used up in their iteration.
        return buffer_state if isinstance(self._buffer, Rollout) else self._buffer.mark_break(buffer_state)

    def _stats(self, state: TrainState) -> Metrics:
        # A rollout is empty between chunks: its rows are used up in their iteration.
        return self._buffer.stats(state.buffer) if isinstance(self._buffer, ReplayBuffer) else {}

    def _act(
        self,
        policy: PolicyLeaves,
        key: jax.Array,
        iteration: jax.Array,
        actor: jax.Array,
        obs: PyTree,
        carry: PyTree,
        is_fresh: jax.Array,
        number: jax.Array,
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Act as `loop.collect` does, in the environments of an actor."""

        def of_seed(policy: PolicyLeaves, key: jax.Array, *inputs: Any) -> tuple[PyTree, PyTree, PyTree]:
            keys = iteration_keys(fold_in(key, iteration), self._plan).act
            return self._act_fresh(self._state_of(policy), self._step_key(keys, number, actor), *inputs)

        inputs = self._by_seed(obs), carry, self._by_seed(is_fresh)
        action, carry, extras = self._over_seeds(of_seed)(policy, key, *inputs)
        return self._flat(action), carry, self._flat(extras)

    def _act_first(
        self,
        agent_state: PyTree,
        keys: jax.Array,
        actor: jax.Array,
        obs: PyTree,
        carry: PyTree,
        is_fresh: jax.Array,
        number: jax.Array,
        random: bool,
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Act in the first steps, randomly or as the agent does; extras and carry are always those of the agent."""

        def of_seed(agent_state: PyTree, keys: jax.Array, *inputs: Any) -> tuple[PyTree, PyTree, PyTree]:
            key = self._step_key(keys, number, actor)
            if not random:
                return self._act_fresh(agent_state, key, *inputs)
            key, key_random = split(key)
            _, carry, extras = self._act_fresh(agent_state, key, *inputs)
            return self._env.action_space.sample(key_random, inputs[-1].shape[0]), carry, extras

        inputs = self._by_seed(obs), carry, self._by_seed(is_fresh)
        action, carry, extras = self._over_seeds(of_seed)(agent_state, keys, *inputs)
        return self._flat(action), carry, self._flat(extras)

    def _act_fresh(
        self, agent_state: PyTree, key: jax.Array, obs: PyTree, carry: PyTree, is_fresh: jax.Array
    ) -> tuple[PyTree, PyTree, PyTree]:
        fresh = self._agent.initial_carry(is_fresh.shape[0])
        carry = jax.tree.map(lambda new, old: where_env(is_fresh, new, old), fresh, carry)
        return self._agent.act(agent_state, obs, carry, key)

    def _step_key(self, keys: jax.Array, number: jax.Array, actor: jax.Array) -> jax.Array:
        """Return the key of a step. There may be more steps than keys, because steps that only reset add no rows."""
        late, index = jnp.divmod(number, keys.shape[0])
        key = keys[index]
        key = jnp.where(late == 0, key, fold_in(key, LAST - late))
        return key if self._num_actors == 1 else fold_in(key, actor)

    def _learn(self, state: TrainState, key: jax.Array, parts: list[Part]) -> tuple[TrainState, PolicyLeaves]:
        """Learn from the rows of all actors. The key of `state` is passed separately, as `key`."""

        def of_seed(
            state: TrainState, key: jax.Array, chunk: Transition, finished: Finished
        ) -> tuple[TrainState, PolicyLeaves]:
            keys = iteration_keys(fold_in(key, state.iteration), self._plan)
            parts = self._agent, self._buffer, self._plan
            state = train_state.learn(state._replace(key=key), chunk, finished, keys, *parts)
            return state._replace(key=()), self._read_by_acting(state.agent)

        return self._over_seeds(of_seed)(state, key, *self._joined(parts))

    def _learn_offline(self, state: TrainState, num_updates: int) -> TrainState:
        def of_seed(state: TrainState) -> TrainState:
            return loop.run_offline(state, self._agent, self._buffer, self._plan, num_updates)

        return self._over_seeds(of_seed)(state)

    def _store(self, state: TrainState, step: jax.Array, parts: list[Part]) -> TrainState:
        """Add the rows of all actors to the buffer; `state` has no key."""
        buffer: Any = self._buffer  # never a rollout, because rollouts have no warm-up

        def of_seed(state: TrainState, chunk: Transition) -> TrainState:
            return train_state.store(state, chunk, step, self._agent, buffer, self._plan)

        return self._over_seeds(of_seed)(state, self._joined(parts)[0])

    def _joined(self, parts: list[Part]) -> Part:
        """Return the rows of all actors together, leaves `[K, N, ...]`, or `[S, K, N, ...]`."""
        by_seed = [self._by_seed(part, axis=1) for part in parts]
        axis = 1 if self._num_seeds is None else 2
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *by_seed)

    def _test(
        self, agent_state: PyTree, key: jax.Array, obs: PyTree, carry: PyTree, number: jax.Array, deterministic: bool
    ) -> tuple[PyTree, PyTree]:
        def of_seed(agent_state: PyTree, key: jax.Array, obs: PyTree, carry: PyTree) -> tuple[PyTree, PyTree]:
            return act_in_test(self._agent, agent_state, obs, carry, number, key, deterministic)

        action, carry = self._over_seeds(of_seed)(agent_state, key, self._by_seed(obs), carry)
        return self._flat(action), carry

    def _read_by_acting(self, agent_state: PyTree) -> PolicyLeaves:
        leaves = jax.tree.leaves(agent_state)
        return [leaf for leaf, is_read in zip(leaves, self._is_read, strict=True) if is_read]

    def _state_of(self, policy: PolicyLeaves) -> PyTree:
        """Return a state of the agent that is sufficient for acting, made from the leaves that acting reads."""
        structure, rest = self._agent_structure, iter(policy)
        leaves, tree = jax.tree.flatten(structure)
        filled = [
            next(rest) if is_read else jnp.zeros(leaf.shape, leaf.dtype)
            for leaf, is_read in zip(leaves, self._is_read, strict=True)
        ]
        return jax.tree.unflatten(tree, filled)

    @functools.cached_property
    def _agent_structure(self) -> PyTree:
        """Shapes and dtypes of the agent's state, of one seed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(lambda key: self._agent.init(key, self._env.obs, self._env.action_space.example), key)

    @functools.cached_property
    def _is_read(self) -> list[bool]:
        """Whether acting reads each leaf of an agent's state; only those leaves are copied for the actors."""

        def act(agent_state: PyTree, obs: PyTree) -> PyTree:
            obs = jax.tree.map(lambda leaf: leaf[None], obs)
            return self._agent.act(agent_state, obs, self._agent.initial_carry(1), jax.random.key(0))

        jaxpr = jax.make_jaxpr(act)(self._agent_structure, self._env.obs).jaxpr
        read = {id(var) for equation in jaxpr.eqns for var in equation.invars} | {id(var) for var in jaxpr.outvars}
        return [id(var) in read for var in jaxpr.invars[: len(jax.tree.leaves(self._agent_structure))]]


def _with_axes(structure: PyTree, axes: tuple[int, ...]) -> PyTree:
    """Put axes in front of shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype), structure)
