"""Double Q-learning on BitFlip15-v0, which takes hindsight: in all the budget chance never meets a goal."""

from algorithms.plan import Plan

SETTINGS = {
    "plan": Plan(
        total_steps=30_000,
        num_envs=15,
        start_steps=1_500,
        update_every=150,
        num_updates=40,
        mini_batch_size=128,
        test_every=2_850,
        num_test_episodes=20,
    ),
    "hindsight": "future",
    "capacity": 30_000,
    "gamma": 0.98,
    "hidden_sizes": (256,),
    "agent": {
        "learning_rate": 1e-3,
        "polyak": 0.95,
        "max_grad_norm": 10.0,
        "epsilon_decay": 0.9995,
        "final_epsilon": 0.05,
    },
}
