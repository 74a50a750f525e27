"""The equations of MPO, written out on whole batches.

The losses of the duals and the metrics are the same for both kinds of actions. What differs comes in `Parts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from models.networks import NUM, ROWS, SIZE, all_values, gaussian, scaled, values


class Parts(NamedTuple):
    """What the losses of one kind of actions are made of."""

    target: jax.Array  # of the critic, [B]
    q: Callable  # critic -> values of the replayed actions, [B]
    improve: Callable  # actor -> losses of the improved policy [B], and divergences, each [B] or [B, A]
    dual: Callable  # temperatures -> losses of the temperatures, [B]
    entropy: Callable  # actor -> [B]
    limits: tuple[float, ...]  # of the divergences


def mpo(agent, state, sample, key):
    """With continuous actions."""
    batch, keys = sample.batch, jax.random.split(key)

    def candidates(obs, key):
        mean, std = (leaf[:, None] for leaf in gaussian(state.target.actor, obs))
        action = mean + std * jax.random.normal(key, (NUM, 4, SIZE))
        inside = jnp.clip(action, -1, 1)
        q = jax.vmap(values, in_axes=(None, None, 1), out_axes=1)(state.target.critic, obs, inside)
        return action, q, -jnp.sqrt(jnp.sum((action - inside) ** 2, axis=2))

    target = batch.reward + batch.discount * jnp.mean(candidates(batch.next_obs, keys[1])[1], axis=1)
    action, *objectives = candidates(batch.obs, keys[0])
    mean_t, std_t = gaussian(state.target.actor, batch.obs)
    temperature = jax.nn.softplus(state.params.temperature)

    def improve(actor):
        mean, std = gaussian(actor, batch.obs)
        improved = sum(jax.nn.softmax(values / eta) for values, eta in zip(objectives, temperature, strict=True))
        density = norm.logpdf(action, mean[:, None], std_t[:, None])
        density += norm.logpdf(action, mean_t[:, None], std[:, None])
        kl_mean = (mean - mean_t) ** 2 / (2 * std_t**2)
        kl_variance = jnp.log(std / std_t) + std_t**2 / (2 * std**2) - 0.5
        return -jnp.sum(improved * jnp.sum(density, axis=2), axis=1), kl_mean, kl_variance

    def dual(etas):
        terms = zip(objectives, etas, (0.1, 1e-3), strict=True)
        return sum(eta * (limit + jnp.log(jnp.mean(jnp.exp(x / eta), axis=1))) for x, eta, limit in terms)

    def entropy(actor):
        std = gaussian(actor, batch.obs)[1]
        return jnp.sum(0.5 * jnp.log(2 * np.pi * np.e * std**2), axis=1)

    q = lambda critic: values(critic, batch.obs, scaled(batch.action))  # noqa: E731
    return combined(Parts(target, q, improve, dual, entropy, (0.01, 1e-4)), state.params, sample.weights)


def mpo_discrete(agent, state, sample, key):
    batch = sample.batch
    log_probs = lambda actor, obs: agent.policy.distribution(actor, obs).log_probs  # noqa: E731
    prior, target_q = log_probs(state.target.actor, batch.obs), all_values(state.target.critic, batch.obs)
    next_prior = jnp.exp(log_probs(state.target.actor, batch.next_obs))
    next_value = jnp.sum(next_prior * all_values(state.target.critic, batch.next_obs), axis=1)
    target = batch.reward + batch.discount * next_value
    temperature = jax.nn.softplus(state.params.temperature)

    def improve(actor):
        unnormalized = jnp.exp(prior) * jnp.exp(target_q / temperature[0])
        improved = unnormalized / jnp.sum(unnormalized, axis=1, keepdims=True)
        online = log_probs(actor, batch.obs)
        return -jnp.sum(improved * online, axis=1), jnp.sum(jnp.exp(prior) * (prior - online), axis=1)

    def dual(etas):
        return etas[0] * (0.2 + jnp.log(jnp.sum(jnp.exp(prior) * jnp.exp(target_q / etas[0]), axis=1)))

    def entropy(actor):
        online = log_probs(actor, batch.obs)
        return -jnp.sum(jnp.exp(online) * online, axis=1)

    q = lambda critic: all_values(critic, batch.obs)[ROWS, batch.action]  # noqa: E731
    return combined(Parts(target, q, improve, dual, entropy, (0.01,)), state.params, sample.weights)


def of_row(multiplier, values):
    """Return a sum for each row of `values`, which are `[B]` or `[B, A]`."""
    terms = multiplier * values if values.ndim == 1 else multiplier[None] * values
    return terms if terms.ndim == 1 else jnp.sum(terms, axis=1)


def combined(parts, params, weights):
    """Return the losses of all groups, the priorities and the metrics."""
    temperature, multipliers = (jax.nn.softplus(x) for x in (params.temperature, params.multipliers))

    def actor_loss(actor):
        loss, *divergences = parts.improve(actor)
        return jnp.mean(weights * (loss + sum(map(of_row, multipliers, divergences))))

    def multiplier_loss(raw):
        room = [limit - kl for limit, kl in zip(parts.limits, parts.improve(params.actor)[1:], strict=True)]
        return jnp.mean(weights * sum(map(of_row, jax.nn.softplus(raw), room)))

    losses = {
        "critic": lambda critic: jnp.mean(weights * (parts.q(critic) - parts.target) ** 2) / 2,
        "actor": actor_loss,
        "temperature": lambda raw: jnp.mean(weights * parts.dual(jax.nn.softplus(raw))),
        "multipliers": multiplier_loss,
    }
    loss, *divergences = parts.improve(params.actor)
    metrics = {
        "loss_pi": jnp.mean(loss),
        "loss_temperature": jnp.mean(parts.dual(temperature)),
        "temperature": temperature[0],
        "entropy": jnp.mean(parts.entropy(params.actor)),
        "loss_q": losses["critic"](params.critic),
        "q": jnp.mean(parts.q(params.critic)),
    }
    for name, multiplier, kl in zip(("", "_variance"), multipliers, divergences, strict=False):
        metrics |= {f"multiplier{name}": jnp.mean(multiplier), f"kl{name}": jnp.mean(kl)}
    return losses, jnp.abs(parts.q(params.critic) - parts.target), metrics
