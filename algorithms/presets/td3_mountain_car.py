"""TD3 on MountainCarContinuous-v0: without correlated noise the goal is never seen."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=80_000,
        num_envs=10,
        start_steps=10_000,
        update_every=40,
        num_updates=10,
        mini_batch_size=128,
        test_every=10_000,
        num_test_episodes=10,
    ),
    "capacity": 80_000,
    "gamma": 0.995,
    "n_step": 5,
    "hidden_sizes": (64, 64),
    "agent": {
        "noise": "pink",
        "noise_scale": 0.8,
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "polyak": 0.99,
        "max_grad_norm": 10.0,
    },
}
