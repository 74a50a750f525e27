"""Maximum a posteriori policy optimization on Pendulum-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=30_000,
        num_envs=2,
        start_steps=1_000,
        update_every=2,
        num_updates=1,
        mini_batch_size=128,
        test_every=2_900,
        num_test_episodes=10,
    ),
    "n_step": 3,
    "capacity": 30_000,
    "hidden_sizes": (64, 64),
    "agent": {
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "max_grad_norm": 40.0,
        "polyak": 0.99,
        "kl_variance_constraint": 1e-3,
    },
}
