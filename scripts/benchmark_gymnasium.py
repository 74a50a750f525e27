"""Training speed in Gymnasium's environments: steps a second of `train_on_host`'s loop, and of SBX on the same task.

    python scripts/benchmark_gymnasium.py                                   # SAC and TD3, Pendulum and HalfCheetah
    python scripts/benchmark_gymnasium.py --agents sac --environments Pendulum-v1 --hidden 64
    pip install -e ".[gymnasium,peers]"                                     # SBX; it brings torch along

Both libraries have one environment, batches of 256, one update per step and the same network. They run in one process
and take turns. The loop steps environments while it learns; `in turn` does one after the other. Each figure is the
median of the repeats. A ratio is the median of the ratios of neighboring repeats, with the quartiles in brackets.
Compilation is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmark_training import BATCH_SIZE, Repeat, interleaved

import jaxrl_buffers as jb
from algorithms import SAC, TD3, Plan, Torso, environments
from algorithms.runs.host_loop import HostLoop

AGENTS: dict[str, Any] = {"sac": SAC, "td3": TD3}
FIRST_STEPS, CAPACITY = 1_000, 100_000
SECONDS = 1.0  # one repeat takes about this long


def main(arguments: list[str]) -> int:
    """Measure, print the table and write JSON."""
    options = _options(arguments)
    rows = []
    for environment in options.environments.split(","):
        for agent in options.agents.split(","):
            for hidden in map(int, options.hidden.split(",")):
                rows.append(_row(environment, agent, hidden, options.repeats))
    if options.json:
        options.json.write_text(json.dumps({"device": str(jax.devices()[0]), "rows": rows}, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", default="Pendulum-v1,HalfCheetah-v5", help="ids separated by commas")
    parser.add_argument("--agents", default=",".join(AGENTS), help="names separated by commas")
    parser.add_argument("--hidden", default="64,256", help="widths of the two hidden layers")
    parser.add_argument("--repeats", type=int, default=9, help="of every figure")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args(arguments)


def _row(environment: str, agent: str, hidden: int, count: int) -> dict[str, Any]:
    repeats = {"ours": _ours(environment, agent, hidden, False), "in turn": _ours(environment, agent, hidden, True)}
    try:
        repeats["SBX"] = _sbx(environment, agent, hidden)
    except ImportError:
        print('SBX is not installed; pip install -e ".[peers]" adds it to the comparison.')
    times = {name: np.array(values) for name, values in interleaved(repeats, count).items()}
    row: dict[str, Any] = {"environment": environment, "agent": agent, "hidden": hidden}
    row |= {name: float(1e6 / np.median(values)) for name, values in times.items()}
    text = "  ".join(f"{name} {row[name]:,.0f}" for name in times)
    if "SBX" in times:
        row["ratio"] = np.quantile(times["SBX"] / times["ours"], [0.25, 0.5, 0.75]).tolist()
        text += "  {1:.2f}x ({0:.2f} to {2:.2f})".format(*row["ratio"])
    print(f"{environment:16} {agent:4} {hidden}x{hidden}  {text}", flush=True)
    return row


def _ours(environment: str, agent: str, hidden: int, collect_then_learn: bool) -> Repeat:
    env = environments.make(f"gymnasium:{environment}")
    plan = Plan(10**9, start_steps=FIRST_STEPS, update_every=1, num_updates=1, mini_batch_size=BATCH_SIZE)
    component = AGENTS[agent](env.action_space, torso=Torso((hidden, hidden)))
    loop = HostLoop(component, jb.uniform(CAPACITY), env, plan, collect_then_learn)
    state = [loop.run(loop.init(jax.random.key(0)), 100)]

    def run(num_steps: int) -> None:
        state[0] = jax.block_until_ready(loop.run(state[0], num_steps))

    return _timed(run)


def _sbx(environment: str, agent: str, hidden: int) -> Repeat:
    warnings.filterwarnings("ignore")  # of its dependencies
    import sbx

    options = {"learning_starts": FIRST_STEPS, "train_freq": 1, "gradient_steps": 1, "buffer_size": CAPACITY}
    network = {"net_arch": [hidden, hidden]}
    make = getattr(sbx, agent.upper())
    model = make("MlpPolicy", environment, batch_size=BATCH_SIZE, policy_kwargs=network, **options)
    model.learn(FIRST_STEPS + 100)
    return _timed(lambda num_steps: model.learn(num_steps, reset_num_timesteps=False))


def _timed(run: Any) -> Repeat:
    """Return a function that runs for about `SECONDS` and returns the microseconds per step."""
    begun = time.perf_counter()
    run(50)
    num_steps = max(int(50 * SECONDS / (time.perf_counter() - begun)), 50)

    def repeat() -> float:
        begun = time.perf_counter()
        run(num_steps)
        return 1e6 * (time.perf_counter() - begun) / num_steps

    return repeat


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
