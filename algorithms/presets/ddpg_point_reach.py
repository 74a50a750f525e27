"""DDPG on PointReach-v0, with hindsight: without it, the same budget brings the point to 8 % of its goals."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=10_000,
        num_envs=10,
        start_steps=1_000,
        update_every=50,
        num_updates=25,
        mini_batch_size=128,
        test_every=900,
        num_test_episodes=20,
    ),
    "hindsight": "future",
    "capacity": 10_000,
    "gamma": 0.98,
    "hidden_sizes": (64, 64),
    "agent": {
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "polyak": 0.99,
        "max_grad_norm": 10.0,
        "noise_scale": 0.2,
    },
}
