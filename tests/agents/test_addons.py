"""Policy-loss add-ons, over the list in agents.py."""

from __future__ import annotations

import chex
import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.key_reuse._core import check_key_reuse  # traces, where the public flag compiles
from support.agents import AGENTS, BOX, OBS, SMALL, sample, without_images

import jaxrl_buffers as jb
from algorithms import (
    DDPG,
    DDQN,
    PPO,
    SAC,
    AttractionKL,
    Discrete,
    LinearDecay,
    Plan,
    RepulsionKL,
    RewardPrediction,
    Torso,
    behavior,
    environments,
    train,
)
from algorithms.addons.behaviors import divergence
from algorithms.networks.distributions import Categorical, Normal, TanhNormal

names = pytest.mark.parametrize("name", AGENTS)


def init(agent, key):
    return agent.init(key, OBS["x"], agent.action_space.example)


def vectors(agent, num=6):
    return without_images(sample(agent, jax.random.key(1), num))


def categorical(*probabilities, num=6):
    log_probs = jnp.log(jnp.asarray(probabilities, jnp.float32))
    return Categorical(jnp.broadcast_to(log_probs, (num, len(probabilities))))


def normal(kind, mean, std, num=6):
    return kind(jnp.full((num, 2), mean, jnp.float32), jnp.full((num, 2), jnp.log(std), jnp.float32))


def skewed(agent):
    """Return a behavior that differs from every fresh policy."""
    if isinstance(agent.action_space, Discrete):
        return behavior(lambda obs: categorical(0.8, 0.1, 0.1, num=obs.shape[0]))
    kind = TanhNormal if isinstance(agent, SAC) else Normal
    return behavior(lambda obs: normal(kind, 0.5, 0.3, num=obs.shape[0]))


@names
def test_attraction_and_repulsion_move_the_policy_and_rewards_are_learned(name):
    """One program with all add-ons, run with either force and with none."""
    fixed, plain = skewed(AGENTS[name]()), AGENTS[name]()
    fast = {rate: 1e-2 for rate in ("learning_rate", "learning_rate_pi") if hasattr(plain, rate)}
    addons = AttractionKL((fixed,)), RepulsionKL((fixed,)), RewardPrediction(learning_rate=1e-2)
    agent, batch = AGENTS[name](addons=addons, **fast), vectors(plain)

    @jax.jit
    def train(attraction, repulsion):
        learner = jb.with_parameters(agent, {"addons.0.scale": attraction, "addons.1.scale": repulsion})

        def update(state, key):
            grads, info = learner.gradients(state, batch, key)
            chex.assert_trees_all_equal_structs(grads, state.params)
            return learner.apply(state, grads), info.metrics

        before = init(learner, jax.random.key(0))
        after, metrics = jax.lax.scan(update, before, jax.random.split(jax.random.key(2), 15))
        return before, after, metrics, init(plain, jax.random.key(0))

    attracted, repelled, free = (train(*forces) for forces in ((10.0, 0.0), (0.0, 10.0), (0.0, 0.0)))
    assert train._cache_size() == 1
    for before, after, metrics, without in (attracted, repelled, free):
        chex.assert_tree_all_finite((after, metrics))
        chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
        # Without add-ons there is no trace of them, and the networks begin the same.
        chex.assert_trees_all_equal(before.params._replace(addons=()), without.params)
        assert without.optimizer.addons == ()
    kl = [metrics["addon0_kl"] for _, _, metrics, _ in (attracted, repelled)]
    assert kl[0][-1] < 0.9 * kl[0][0]
    assert kl[1][-1] > 1.1 * kl[1][0]
    before, after, metrics, _ = free
    assert metrics["addon2_loss"][-1] < 0.9 * metrics["addon2_loss"][0]
    pairs = zip(jax.tree.leaves(before.params.addons), jax.tree.leaves(after.params.addons), strict=True)
    assert all(jnp.any(a != b) for a, b in pairs)


@names
def test_no_key_is_used_twice(name):
    """Nor by add-ons, which fold what an agent consumes; checked one by one, as `vmap` would hide it."""
    plain = AGENTS[name]()
    agent = AGENTS[name](addons=(AttractionKL((skewed(plain),)), RewardPrediction(), RewardPrediction()))
    batch, key = vectors(plain), jax.random.key(0)
    state = jax.eval_shape(lambda key: init(agent, key), key)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    with jax.debug_key_reuse(True):  # else keys are unrolled, through which JAX does not look
        check_key_reuse(lambda key: init(agent, key), key)
        check_key_reuse(lambda key: agent.act(state, batch.batch.obs, agent.initial_carry(6), key), key)
        check_key_reuse(lambda key: agent.gradients(state, batch, key), key)


def test_a_key_that_is_used_twice_is_found():
    class Careless(RewardPrediction):
        def loss(self, params, policy, features, sample, key):
            return jax.random.normal(key) + super().loss(params, policy, features, sample, key)[0], {}

    agent = DDQN(Discrete(3), SMALL, addons=(Careless(),))
    state = init(agent, jax.random.key(0))
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        check_key_reuse(lambda key: agent.gradients(state, vectors(agent), key), jax.random.key(0))


@pytest.mark.parametrize("name", ["ddqn", "sac", "td3", "mpo", "ppo"])
def test_schedules_count_updates(name):
    """Every group is stepped by its rate times the schedule's factor at that update, however often it is stepped."""
    num_updates, num_passes = 4, 3 if name == "mpo" else 1
    options = {"num_passes": num_passes} if name == "mpo" else {}
    agent = AGENTS[name](addons=(RewardPrediction(),), schedule=LinearDecay(num_updates), **options)
    agent = jb.with_parameters(agent, {rate: 1e-2 for rate in jb.parameters(agent) if "learning_rate" in rate})

    def gradient(group, params):
        passes = [num_passes] if group in ("actor", "multipliers", "addons") and num_passes > 1 else []
        return jax.tree.map(lambda leaf: jnp.ones((*passes, *leaf.shape)), params)

    @jax.jit
    def run(state):
        # Always the same, so that Adam steps along it by its rate.
        grads = type(state.params)(*map(gradient, state.params._fields, state.params))
        step = lambda state, _: (agent.apply(state, grads),) * 2  # noqa: E731
        return jax.lax.scan(step, state, length=num_updates)[1].params

    state = jax.jit(init)(agent, jax.random.key(0))
    history = jax.tree.map(lambda one, many: np.concatenate([one[None], many]), state.params, run(state))
    for group in history._fields:
        leaf = jax.tree.leaves(getattr(history, group))[0]
        moved = (leaf[:-1] - leaf[1:]).reshape(num_updates, -1)[:, 0]
        num_steps = num_passes if group in ("actor", "multipliers", "addons") else 1
        factor = num_steps * (1 - np.arange(num_updates) / num_updates)
        rests = [1, 3] if (name, group) == ("td3", "actor") else []
        factor[rests] = 0
        np.testing.assert_allclose(moved, 1e-2 * factor, rtol=1e-3, atol=1e-6, err_msg=group)


@pytest.mark.parametrize(
    ("fixed", "policy", "oracle"),
    [
        (categorical(0.2, 0.3, 0.5), categorical(0.6, 0.3, 0.1), lambda d: distrax.Categorical(d.log_probs)),
        (
            normal(Normal, 0.1, 0.5),
            normal(Normal, -0.4, 1.5),
            lambda d: distrax.MultivariateNormalDiag(d.mean, jnp.exp(d.log_std)),
        ),
        (  # divergences do not change under a bijection
            normal(TanhNormal, 0.1, 0.5),
            normal(TanhNormal, -0.4, 1.5),
            lambda d: distrax.MultivariateNormalDiag(d.mean, jnp.exp(d.log_std)),
        ),
    ],
    ids=["categorical", "normal", "tanh_normal"],
)
def test_divergences_are_those_of_distrax(fixed, policy, oracle):
    found = divergence(behavior(lambda obs: fixed), policy, jnp.zeros((6, 1)))
    expected = oracle(fixed).kl_divergence(oracle(policy))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_divergence_of_squashed_gaussians_is_that_of_draws():
    one, two = (TanhNormal(jnp.full(1, mean), jnp.full(1, log_std)) for mean, log_std in ((0.2, -1.0), (-0.1, -0.5)))
    action, log_prob = jax.vmap(one.sample_and_log_prob)(jax.random.split(jax.random.key(0), 20_000))
    drawn = log_prob - jax.vmap(two.log_prob)(jnp.clip(action, -1 + 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(jnp.sum(one.kl(two)), jnp.mean(drawn), atol=0.02)


def term(addon, policy, batch, key=None):
    return addon.loss(addon.init(key, (), (), ()), policy, (), batch, key)[0]


def test_the_terms_are_what_they_say():
    behaviors = categorical(0.8, 0.1, 0.1), categorical(0.1, 0.1, 0.8)
    policy = categorical(0.5, 0.3, 0.2)
    batch = sample(DDQN(Discrete(3)), jax.random.key(0))._replace(weights=jnp.linspace(0, 1, 6))
    each = tuple(behavior(lambda fixed, obs: fixed, b) for b in behaviors)
    p = np.exp([b.log_probs[0] for b in behaviors])
    kl = 0.5 * np.sum(p * np.log(p / np.array([0.5, 0.3, 0.2])), axis=1)  # the mean weight is 0.5

    def expect(addon, value):
        np.testing.assert_allclose(term(addon, policy, batch), value, rtol=1e-5)

    expect(AttractionKL(each, scale=2.0), 2 * (kl.min() + np.log(2)))
    expect(AttractionKL(each, weights=(1, 3)), np.min(kl - np.log([0.25, 0.75])))
    expect(AttractionKL(each, weights=(0, 3)), kl[1])
    expect(RepulsionKL(each, scale=2.0), -2 * kl.mean())
    expect(RepulsionKL(each, weights=(1, 3)), -(0.25 * kl[0] + 0.75 * kl[1]))


def test_a_behavior_that_excludes_actions_has_a_finite_divergence_and_gradient():
    fixed = behavior(lambda obs: categorical(1.0, 0.0, 0.0))

    def loss(logits):
        return jnp.sum(divergence(fixed, Categorical(jax.nn.log_softmax(logits)), jnp.zeros((6, 1))))

    value, slope = jax.value_and_grad(loss)(jnp.zeros((6, 3)))
    np.testing.assert_allclose(value, 6 * np.log(3), rtol=1e-5)
    chex.assert_tree_all_finite(slope)


def test_an_agent_is_a_behavior_whose_state_is_data():
    teacher, obs = PPO(BOX, SMALL), jnp.ones((6, 4))
    one, two = (init(teacher, jax.random.key(seed)) for seed in (0, 1))
    distance = jax.jit(lambda fixed, state: divergence(fixed, teacher.distribution(state, obs), obs))
    np.testing.assert_array_equal(distance(behavior(teacher, one), one), np.zeros(6))
    assert jnp.all(distance(behavior(teacher, two), one) > 0)
    assert distance._cache_size() == 1

    def distance_of(params):
        return jnp.sum(distance(behavior(teacher, two._replace(params=params)), one))

    slopes = jax.grad(distance_of)(two.params)
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(slopes))  # behaviors do not learn


def test_zero_rewards_are_masked_in_the_given_ratio():
    batch = sample(DDQN(Discrete(3)), jax.random.key(0), 1000)
    reward = jnp.where(jnp.arange(1000) < 100, 2.0, 0.0)
    batch = batch._replace(batch=batch.batch._replace(reward=reward))
    params = {"params": {"kernel": jnp.zeros((4, 1)), "bias": jnp.ones(1)}}  # predicts 1, so every error is 1

    def loss(ratio, seed=0):
        addon = RewardPrediction(zero_mask_ratio=ratio)
        return addon.loss(params, categorical(1.0), jnp.zeros((1000, 4)), batch, jax.random.key(seed))[0]

    np.testing.assert_allclose(loss(0.0), 0.5)
    np.testing.assert_allclose(loss(1.0), 0.5 * 0.1, rtol=1e-6)
    np.testing.assert_allclose(loss(0.5), 0.5 * 0.55, atol=0.03)
    assert loss(0.5, seed=0) != loss(0.5, seed=1)


def test_a_rollout_brings_its_rewards_along():
    """CartPole pays 1 a step, which the head's bias alone can learn."""
    env = environments.make("CartPole-v1")
    agent = PPO(env.action_space, Torso((8, 8)), addons=(RewardPrediction(learning_rate=0.1),))
    plan = Plan(128, 2, start_steps=0, update_every=16, num_updates=4, mini_batch_size=8, test_every=64)
    _, metrics = jax.jit(lambda key: train(key, agent, jb.rollout(8, num_envs=2), env, plan))(jax.random.key(0))
    assert metrics["addon0_error"][-1] < 0.5 * metrics["addon0_error"][0]


@names
@pytest.mark.parametrize("wrong", ["attract", (lambda obs: obs,), (AttractionKL,), [RewardPrediction()], (None,)])
def test_what_is_no_add_on_is_refused(name, wrong):
    with pytest.raises(ValueError, match="add-on"):
        AGENTS[name](addons=wrong)


@pytest.mark.parametrize("kind", [AttractionKL, RepulsionKL])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"behaviors": ()}, "at least one"),
        ({"behaviors": (lambda obs: obs,)}, "is not a behavior"),
        ({"weights": (1.0,)}, "a tuple of 2 weights, one for each"),
        ({"weights": (1.0, -1.0)}, "weights"),
        ({"weights": (0.0, 0.0)}, "above 0"),
        ({"scale": -1.0}, "scale"),
    ],
)
def test_bad_divergences_are_refused(kind, options, message):
    fixed = behavior(lambda obs: categorical(0.5, 0.5))
    with pytest.raises(ValueError, match=message):
        kind(**{"behaviors": (fixed, fixed), **options})


def test_bad_behaviors_are_refused():
    with pytest.raises(ValueError, match="agent or a function"):
        behavior(3)
    with pytest.raises(ValueError, match="state"):
        behavior(DDPG(BOX))
    with pytest.raises(ValueError, match="same kind"):
        divergence(behavior(lambda obs: categorical(1.0)), normal(Normal, 0.0, 1.0), ())
    with pytest.raises(ValueError, match="zero_mask_ratio"):
        RewardPrediction(zero_mask_ratio=2.0)
