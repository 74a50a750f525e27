"""The equations of every algorithm, written out on whole batches: losses, priorities and metrics.

Online and target networks differ, and so do all weights, so that nothing can stand in for another thing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from models.mpo_equations import mpo, mpo_discrete
from models.networks import ACTIONS, NUM, ROWS, SIZE, TORSO, all_values, gaussian, over_batch, scaled, values
from support.agents import BOX

from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Discrete
from algorithms.networks import DeterministicActor, GaussianActor, ValueNetwork
from jaxrl_buffers import Batch, Handle, Sample
from jaxrl_buffers.rollouts import RolloutBatch

AGENTS = {
    "ddqn": DDQN(Discrete(ACTIONS), TORSO, initial_epsilon=0.3),
    "ddpg": DDPG(BOX, TORSO),
    "td3": TD3(BOX, TORSO),
    "sac": SAC(BOX, TORSO, initial_alpha=0.3, target_entropy=-0.7),
    "sac_discrete": SAC(Discrete(ACTIONS), TORSO, initial_alpha=0.3),
    "mpo": MPO(BOX, TORSO, num_samples=4),
    "mpo_discrete": MPO(Discrete(ACTIONS), TORSO, dual_constraint=0.2),
    "ppo": PPO(BOX, TORSO, entropy_coefficient=0.1),
    "ppo_discrete": PPO(Discrete(ACTIONS), TORSO, entropy_coefficient=0.1),
}


def moved(tree, key):
    """Return the tree with every number in another place."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([leaf + 0.5 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys)])  # noqa: B905


def drawn(agent, key):
    """Return a batch with rewards, discounts and weights that all differ."""
    keys = jax.random.split(key, 5)
    obs, next_obs = jax.random.normal(keys[0], (2, NUM, 3))
    action = agent.action_space.sample(keys[1], NUM)
    reward, advantage, return_ = jax.random.normal(keys[2], (3, NUM))
    discount, weights = jax.random.uniform(keys[3], (2, NUM)) * jnp.array([[1.0], [2.0]])
    handle = Handle(jnp.zeros(NUM, jnp.int32), jnp.arange(NUM, dtype=jnp.int32))
    if isinstance(agent, PPO):
        old = jax.random.uniform(keys[4], (NUM,)) - 2
        extras = {"action": action, "log_prob": old, "reward": reward}
        return Sample(RolloutBatch(obs, action, advantage, return_, weights > 0, extras), handle, weights)
    return Sample(Batch(obs, action, reward, discount, next_obs, weights > 0), handle, weights)


def ddqn(agent, state, sample, key):
    batch, weights = sample.batch, sample.weights
    best = jnp.argmax(all_values(state.params.critic, batch.next_obs), axis=1)
    target = batch.reward + batch.discount * all_values(state.target, batch.next_obs)[ROWS, best]
    chosen = lambda critic: all_values(critic, batch.obs)[ROWS, batch.action]  # noqa: E731
    losses = {"critic": lambda critic: jnp.mean(weights * (chosen(critic) - target) ** 2)}
    q = chosen(state.params.critic)
    metrics = {"loss_q": losses["critic"](state.params.critic), "q": jnp.mean(q), "epsilon": 0.3}
    return losses, jnp.abs(q - target), metrics


def deterministic(agent, state, sample, key):
    batch, weights = sample.batch, sample.weights
    policy = over_batch(DeterministicActor(SIZE, TORSO))
    stack = jax.vmap(values, in_axes=(0, None, None))
    action = policy(state.target.actor, batch.next_obs)
    if isinstance(agent, TD3):
        action = jnp.clip(action + jnp.clip(0.2 * jax.random.normal(key, (NUM, SIZE)), -0.5, 0.5), -1, 1)
    target = batch.reward + batch.discount * jnp.min(stack(state.target.critic, batch.next_obs, action), axis=0)
    q = lambda critic: stack(critic, batch.obs, scaled(batch.action))  # noqa: E731
    losses = {
        "critic": lambda critic: jnp.sum(weights[None] * (q(critic) - target[None]) ** 2) / (2 * NUM),
        "actor": lambda actor: -jnp.mean(weights * stack(state.params.critic, batch.obs, policy(actor, batch.obs))[0]),
    }
    now = q(state.params.critic)
    metrics = {"loss_q": losses["critic"](state.params.critic), "loss_pi": losses["actor"](state.params.actor)}
    return losses, jnp.abs(jnp.min(now, axis=0) - target), metrics | {"q": jnp.mean(now)}


def squashed(actor, obs, noise):
    """Return an action made from noise, and its log-density by the change of variables."""
    mean, log_std = over_batch(GaussianActor(SIZE, TORSO))(actor, obs)
    before = mean + jnp.exp(log_std) * noise
    density = norm.logpdf(before, mean, jnp.exp(log_std)) - jnp.log(1 - jnp.tanh(before) ** 2)
    return jnp.tanh(before), jnp.sum(density, axis=1)


def sac(agent, state, sample, key):
    batch, weights = sample.batch, sample.weights
    alpha, is_discrete = jnp.exp(state.params.log_alpha), isinstance(agent.action_space, Discrete)
    noise = jax.random.normal(key, (2, NUM, SIZE))

    def expect(actor, critic, obs, noise):
        if is_discrete:
            log_probs = agent.policy.distribution(actor, obs).log_probs
            least = jnp.min(jax.vmap(all_values, in_axes=(0, None))(critic, obs), axis=0)
            return [jnp.sum(jnp.exp(log_probs) * x, axis=1) for x in (least, log_probs)]
        action, log_prob = squashed(actor, obs, noise)
        return jnp.min(jax.vmap(values, in_axes=(0, None, None))(critic, obs, action), axis=0), log_prob

    value, log_prob = expect(state.params.actor, state.target, batch.next_obs, noise[0])
    target = batch.reward + batch.discount * (value - alpha * log_prob)

    def q(critic):
        if is_discrete:
            return jax.vmap(all_values, in_axes=(0, None))(critic, batch.obs)[:, ROWS, batch.action]
        return jax.vmap(values, in_axes=(0, None, None))(critic, batch.obs, scaled(batch.action))

    def actor_loss(actor):
        value, log_prob = expect(actor, state.params.critic, batch.obs, noise[1])
        return jnp.mean(weights * (alpha * log_prob - value))

    _, log_prob = expect(state.params.actor, state.target, batch.obs, noise[1])
    entropy = 0.5 * np.log(ACTIONS) if is_discrete else -0.7
    losses = {
        "critic": lambda critic: jnp.sum(weights[None] * (q(critic) - target[None]) ** 2) / (2 * NUM),
        "actor": actor_loss,
        "log_alpha": lambda log_alpha: -log_alpha * jnp.mean(weights * (log_prob + entropy)),
    }
    names = {"loss_q": "critic", "loss_pi": "actor", "loss_alpha": "log_alpha"}
    metrics = {name: losses[group](getattr(state.params, group)) for name, group in names.items()}
    now = q(state.params.critic)
    metrics |= {"alpha": alpha, "entropy": -jnp.mean(log_prob), "q": jnp.mean(now)}
    return losses, jnp.mean(jnp.abs(now - target[None]), axis=0), metrics


def ppo(agent, state, sample, key):
    batch, weights = sample.batch, sample.weights
    mean = lambda x: jnp.sum(weights * x) / jnp.sum(weights)  # noqa: E731

    def parts(actor):
        if isinstance(agent.action_space, Discrete):
            log_probs = agent.policy.distribution(actor, batch.obs).log_probs
            return log_probs[ROWS, batch.extras["action"]], -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
        middle, std = gaussian(actor, batch.obs)
        density = jnp.sum(norm.logpdf(batch.extras["action"], middle, std), axis=1)
        return density, jnp.sum(0.5 * jnp.log(2 * np.pi * np.e * std**2), axis=1)

    def surrogate(actor):
        ratio = jnp.exp(parts(actor)[0] - batch.extras["log_prob"])
        return mean(-jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 0.8, 1.2) * batch.advantage))

    error = lambda critic: over_batch(ValueNetwork(TORSO))(critic, batch.obs) - batch.return_  # noqa: E731
    losses = {
        "actor": lambda actor: surrogate(actor) - 0.1 * mean(parts(actor)[1]),
        "critic": lambda critic: mean(error(critic) ** 2) / 2,
    }
    log_prob, entropy = parts(state.params.actor)
    ratio = jnp.exp(log_prob - batch.extras["log_prob"])
    metrics = {
        "loss_pi": surrogate(state.params.actor),
        "loss_v": losses["critic"](state.params.critic),
        "entropy": mean(entropy),
        "kl": mean(ratio - 1 - jnp.log(ratio)),
        "clip_fraction": mean(jnp.float32((ratio < 0.8) | (ratio > 1.2))),
    }
    return losses, jnp.abs(error(state.params.critic)), metrics


EQUATIONS = {"ddpg": deterministic, "td3": deterministic, "sac_discrete": sac, "ppo_discrete": ppo}
EQUATIONS |= {"ddqn": ddqn, "sac": sac, "mpo": mpo, "mpo_discrete": mpo_discrete, "ppo": ppo}
