"""Train SBX in an environment of Gymnasium, as rows of the tables of results are trained here.

    python scripts/train_sbx.py sac HalfCheetah-v5 --total-steps 100_000 --num-seeds 3

Everything but the network is the default of SBX. Each seed is evaluated over 100 deterministic episodes. The result is
a JSON file in results/sbx/; seeds that it holds already are not trained again. Needs an environment with SBX:
`pip install sbx-rl "gymnasium[mujoco]"`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NUM_EPISODES = 100


def main(arguments: list[str]) -> int:
    """Train the seeds that are missing."""
    options = _options(arguments)
    command = " ".join(arguments)
    path = ROOT / "results" / "sbx" / (re.sub(r"[^\w.-]+", "_", command.replace("--", "")) + ".json")
    found: dict[str, Any] = {"command": command, "scores": [], "cpu_seconds": [], "wall_seconds": []}
    if path.exists():
        found = json.loads(path.read_text())
    for seed in range(options.seed + len(found["scores"]), options.seed + options.num_seeds):
        begun, worked = time.monotonic(), time.process_time()
        found["scores"].append(_score(options, seed))
        found["wall_seconds"].append(round(time.monotonic() - begun, 1))
        found["cpu_seconds"].append(round(time.process_time() - worked, 1))
        names = ("sbx-rl", "jax", "gymnasium", "mujoco")
        found |= {"steps": options.total_steps, "episodes": NUM_EPISODES, "load": os.getloadavg()[0]}
        found |= {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
        found |= {"versions": {name: importlib.metadata.version(name) for name in names}}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")
        print(f"{command}: seed {seed} {found['scores'][-1]:.1f}", flush=True)
    return 0


def _score(options: argparse.Namespace, seed: int) -> float:
    warnings.filterwarnings("ignore")  # of its dependencies
    import sbx
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    network = {"net_arch": [256, 256]}
    env = make_vec_env(options.environment, 1, seed=seed)
    model = getattr(sbx, options.algorithm.upper())("MlpPolicy", env, seed=seed, policy_kwargs=network)
    model.learn(options.total_steps)
    tests = make_vec_env(options.environment, 10, seed=seed + 10_000)
    return float(evaluate_policy(model, tests, NUM_EPISODES, warn=False)[0])


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=("sac", "td3", "ddpg", "ppo", "dqn"))
    parser.add_argument("environment", help="the id of an environment of Gymnasium")
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--num-seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
