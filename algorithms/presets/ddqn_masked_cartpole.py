"""Double Q-learning with a memory on MaskedCartPole-v1, which shows positions without velocities."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=150_000,
        num_envs=8,
        start_steps=2_000,
        update_every=200,
        num_updates=75,
        mini_batch_size=32,
        test_every=5_000,
        num_test_episodes=10,
    ),
    "n_step": 5,
    "gamma": 0.995,
    "capacity": 100_000,
    "hidden_sizes": (64,),
    "memory": "gru",
    "memory_size": 32,
    "sequence_length": 16,
    "burn_in": 4,
    "averaging": 0.999,
    "agent": {
        "learning_rate": 1e-3,
        "polyak": 0.0,
        "target_update_interval": 50,
        "max_grad_norm": 10.0,
        "epsilon_decay": 0.998,
        "final_epsilon": 0.04,
    },
}
