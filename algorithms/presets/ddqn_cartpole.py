"""Double Q-learning on CartPole-v1.

Bursts of updates against targets that stand still: with slowly averaged targets, policies kept drifting off the track.
So they did with larger exponents of the priorities (`alpha`), in some of the seeds, and with fewer steps in a target;
and with the usual discount of 0.99, for which a fall 200 steps ahead is too small to be seen among the errors.
"""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=50_000,
        num_envs=8,
        start_steps=1_000,
        update_every=200,
        num_updates=100,
        mini_batch_size=64,
        test_every=2_000,
        num_test_episodes=10,
    ),
    "buffer": "prioritized",
    "n_step": 5,
    "gamma": 0.995,
    "averaging": 0.999,
    "capacity": 50_000,
    "hidden_sizes": (64, 64),
    "agent": {
        "learning_rate": 2.3e-3,
        "polyak": 0.0,
        "target_update_interval": 100,
        "max_grad_norm": 10.0,
        "epsilon_decay": 0.999,
        "final_epsilon": 0.04,
    },
    "sampler": {"alpha": 0.3, "weighting": "batch"},
}
