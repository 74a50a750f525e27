"""Maximum a posteriori policy optimization on CartPole-v1."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=100_000,
        num_envs=4,
        start_steps=1_000,
        update_every=4,
        num_updates=1,
        mini_batch_size=128,
        test_every=9_900,
        num_test_episodes=10,
    ),
    "n_step": 3,
    "capacity": 100_000,
    "hidden_sizes": (64, 64),
    "agent": {"learning_rate_q": 1e-3, "learning_rate_pi": 1e-3, "max_grad_norm": 40.0, "polyak": 0.99},
}
