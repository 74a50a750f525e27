"""Soft actor-critic with discrete actions on CartPole-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=50_000,
        num_envs=4,
        start_steps=1_000,
        update_every=4,
        num_updates=2,
        mini_batch_size=128,
        test_every=2_000,
        num_test_episodes=10,
    ),
    "capacity": 50_000,
    "hidden_sizes": (64, 64),
    "agent": {
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "learning_rate_alpha": 1e-3,
        "polyak": 0.99,
        "max_grad_norm": 10.0,
        "initial_alpha": 0.2,
    },
}
