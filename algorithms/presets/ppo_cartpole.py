"""Proximal policy optimization on CartPole-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=100_000,
        num_envs=8,
        start_steps=0,
        update_every=1_000,
        num_updates=40,
        mini_batch_size=250,
        test_every=10_000,
        num_test_episodes=10,
    ),
    "buffer": "rollout",
    "hidden_sizes": (64, 64),
    "activation": "tanh",
    "agent": {"learning_rate_pi": 7.5e-4, "learning_rate_v": 7.5e-4, "entropy_coefficient": 0.01},
}
