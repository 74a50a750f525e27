"""Maximum a posteriori policy optimization on CartPole-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=100_000,
        num_envs=8,
        start_steps=4_000,
        update_every=8,
        num_updates=4,
        mini_batch_size=128,
        test_every=8_000,
        num_test_episodes=10,
    ),
    "n_step": 5,
    "gamma": 0.995,
    "capacity": 100_000,
    "hidden_sizes": (64, 64),
    "averaging": 0.9998,
    "normalizes": True,
    "agent": {
        "learning_rate_q": 1e-3,
        "learning_rate_pi": 1e-3,
        "max_grad_norm": 40.0,
        "polyak": 0.99,
        "dual_constraint": 0.1,
    },
}
