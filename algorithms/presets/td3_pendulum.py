"""TD3 on Pendulum-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=20_000,
        start_steps=1_000,
        update_every=1,
        num_updates=1,
        mini_batch_size=128,
        test_every=1_000,
        num_test_episodes=10,
    ),
    "capacity": 20_000,
    "hidden_sizes": (64, 64),
    "agent": {
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "polyak": 0.99,
        "max_grad_norm": 10.0,
        "noise_scale": 0.2,
    },
}
