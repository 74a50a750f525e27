"""Training speed: environment steps a second of every agent, and of SBX on the same task if it is installed.

    python scripts/benchmark_training.py                  # everything, which takes long
    python scripts/benchmark_training.py --agents sac     # of one agent
    python scripts/benchmark_training.py --quick          # one cell an agent
    pip install -e ".[peers]"                             # SBX; it brings torch along

Both libraries have one environment, batches of 256 and one update per step. PPO collects 256 steps and goes through
them ten times. Each cell is the median of interleaved repeats, with the quartiles beside it. Compilation is not
counted. The parts of a step (collecting, buffer, gradients, optimizer) are measured as separate programs, so their
shares need not add up to exactly one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Plan, Torso, environments
from algorithms.training import loop

BATCH_SIZE = 256
STEPS = 256  # of one repeat, and of one rollout
NUM_EPOCHS = 10  # of PPO
Repeat = Callable[[], float]  # runs once and returns microseconds a step of one seed


class Task(NamedTuple):
    """What an agent is measured on, and the same algorithm in SBX if it has one."""

    environment: str
    make_agent: Any
    sbx: str | None


TASKS = {
    "ddqn": Task("CartPole-v1", DDQN, "DQN"),
    "sac": Task("Pendulum-v1", SAC, "SAC"),
    "td3": Task("Pendulum-v1", TD3, "TD3"),
    "ddpg": Task("Pendulum-v1", DDPG, "DDPG"),
    "mpo": Task("Pendulum-v1", MPO, None),
    "sac_discrete": Task("CartPole-v1", SAC, None),
    "mpo_discrete": Task("CartPole-v1", MPO, None),
    "ppo": Task("CartPole-v1", PPO, "PPO"),
}


class Cell(NamedTuple):
    """One configuration that is measured."""

    agent: str
    num_seeds: int
    hidden: int
    capacity: int

    def __str__(self) -> str:
        seeds = f"{self.num_seeds} seed{'s' if self.num_seeds > 1 else ''}"
        return f"{self.agent:12} {self.hidden}x{self.hidden}  {seeds:7}  capacity {self.capacity:>9,}"


class Experiment(NamedTuple):
    """What a cell trains."""

    agent: Any
    buffer: Any
    env: environments.Environment
    plan: Plan

    @classmethod
    def of(cls, cell: Cell) -> Experiment:
        """Build the components of a cell."""
        task = TASKS[cell.agent]
        env = environments.make(task.environment)
        agent = task.make_agent(env.action_space, Torso((cell.hidden, cell.hidden)))
        if cell.agent == "ppo":
            plan = Plan(
                4_000 * STEPS,
                start_steps=0,
                update_every=STEPS,
                num_updates=NUM_EPOCHS,
                mini_batch_size=BATCH_SIZE,
                test_every=0,
            )
            return cls(agent, jb.rollout(STEPS), env, plan)
        plan = Plan(1_000_000, start_steps=1_000, update_every=1, num_updates=1, mini_batch_size=BATCH_SIZE)
        return cls(agent, jb.uniform(cell.capacity), env, plan)


def main(arguments: list[str]) -> int:
    """Measure, print the tables and write JSON."""
    options = _options(arguments)
    results: dict[str, Any] = {"device": str(jax.devices()[0]), "batch_size": BATCH_SIZE}
    results["speed"] = _speed(options)
    results["shares"] = _shares(options)
    results["peers"] = _peers(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default=",".join(TASKS), help="names separated by commas")
    parser.add_argument("--hidden", default="64,256", help="widths of the two hidden layers")
    parser.add_argument("--seeds", default="1,8", help="seeds side by side in one program")
    parser.add_argument("--capacities", default="10_000,1_000_000", help="of the buffer")
    parser.add_argument("--repeats", type=int, default=7, help="of every cell")
    parser.add_argument("--quick", action="store_true", help="one cell an agent, three repeats, no peers")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    if options.quick:
        options.hidden, options.seeds, options.capacities, options.repeats = "64", "1", "10_000", 3
    for name in ("hidden", "seeds", "capacities"):
        try:
            setattr(options, name, [int(number) for number in getattr(options, name).split(",")])
        except ValueError:
            parser.exit(2, f"--{name}: {getattr(options, name)!r} is not a list of whole numbers.\n")
    options.agents = options.agents.split(",")
    if unknown := set(options.agents) - set(TASKS):
        parser.exit(2, f"--agents: {', '.join(sorted(unknown))} is not among {', '.join(TASKS)}.\n")
    if options.repeats < 1:
        parser.exit(2, "--repeats: at least 1 is needed.\n")
    return options


def _speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    print("Environment steps a second, of all seeds together")
    cells = [
        Cell(agent, seeds, hidden, capacity)
        for agent in options.agents
        for hidden in options.hidden
        for seeds in options.seeds
        for capacity in (options.capacities[:1] if agent == "ppo" else options.capacities)
    ]
    times: dict[Cell, list[float]] = {}
    for agent in options.agents:  # the cells of one agent are interleaved, and then freed
        times |= interleaved({cell: _training(cell) for cell in cells if cell.agent == agent}, options.repeats)
    rows = []
    for cell in cells:
        low, median, high = np.quantile(1e6 * cell.num_seeds / np.array(times[cell]), [0.25, 0.5, 0.75])
        print(f"  {cell}  {median:>9,.0f}  ({low:,.0f} to {high:,.0f})")
        rows.append({**cell._asdict(), "steps_per_second": median, "quartiles": [low, high]})
    return rows


def _training(cell: Cell) -> Repeat:
    agent, buffer, env, plan = Experiment.of(cell)
    over_seeds = (lambda function: function) if cell.num_seeds == 1 else jax.vmap
    key = jax.random.key(0)
    keys = key if cell.num_seeds == 1 else jax.random.split(key, cell.num_seeds)
    state = jax.jit(over_seeds(lambda key: loop.init(key, agent, buffer, env, plan)))(keys)
    num_iterations = STEPS // min(plan.update_every, STEPS)
    run = jax.jit(over_seeds(lambda state: loop.run(state, agent, buffer, env, plan, num_iterations)), donate_argnums=0)
    holder = [jax.block_until_ready(run(state))]

    def repeat() -> float:
        begun = time.perf_counter()
        holder[0] = jax.block_until_ready(run(holder[0]))
        return 1e6 * (time.perf_counter() - begun) / STEPS

    return repeat


def _shares(options: argparse.Namespace) -> list[dict[str, Any]]:
    print("\nParts of a step in microseconds")
    rows = []
    for agent in [agent for agent in options.agents if agent != "ppo"]:
        for hidden in options.hidden:
            cell = Cell(agent, 1, hidden, min(options.capacities))
            parts = {"whole": _training(cell), **_parts(cell)}
            medians = {name: float(np.median(times)) for name, times in interleaved(parts, options.repeats).items()}
            shares = "  ".join(
                f"{name} {medians[name]:,.0f} ({medians[name] / medians['whole']:.0%})" for name in parts
            )
            print(f"  {agent:12} {hidden}x{hidden}  {shares}")
            rows.append({"agent": agent, "hidden": hidden, "microseconds": medians})
    return rows


def _parts(cell: Cell) -> dict[str, Repeat]:
    agent, buffer, env, plan = Experiment.of(cell)
    state = jax.jit(lambda key: loop.init(key, agent, buffer, env, plan))(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), STEPS)
    sample = jax.jit(lambda state: buffer.sample(state, keys[0], BATCH_SIZE))(state.buffer)
    grads, _ = jax.jit(lambda state, sample: agent.gradients(state, sample, keys[0]))(state.agent, sample)

    def collect(collector: Any, key: jax.Array) -> Any:
        key_act, key_env = jax.random.split(key)
        collector, chunk, _ = loop.collect(agent, state.agent, env, collector, key_act[None], key_env[None, None])
        return collector, _consumed(chunk)

    def buffers(carry: Any, key: jax.Array) -> Any:
        row = jax.tree.map(lambda leaf: leaf[:1], state.buffer.storage.data)
        carry = buffer.add(carry, row)
        drawn = buffer.sample(carry, key, BATCH_SIZE)
        return buffer.update_priorities(carry, drawn.handle, drawn.batch.reward), _consumed(drawn.batch)

    def gradients(agent_state: Any, key: jax.Array) -> Any:
        new, info = agent.gradients(agent_state, sample, key)
        # The next step waits for these gradients, as it would if they had been applied.
        params = jax.tree.map(lambda param, grad: param + 1e-30 * grad, agent_state.params, new)
        return agent_state._replace(params=params), _consumed(info)

    def optimizer(agent_state: Any, key: jax.Array) -> Any:
        return agent.apply(agent_state, grads), None

    programs = {
        "collect": (collect, state.collector),
        "buffer": (buffers, state.buffer),
        "gradients": (gradients, state.agent),
        "optimizer": (optimizer, state.agent),
    }
    return {name: _scanned(step, carry, keys) for name, (step, carry) in programs.items()}


def _scanned(step: Any, carry: Any, keys: jax.Array) -> Repeat:
    program = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))
    jax.block_until_ready(program(carry))

    def repeat() -> float:
        begun = time.perf_counter()
        jax.block_until_ready(program(carry))
        return 1e6 * (time.perf_counter() - begun) / STEPS

    return repeat


def _consumed(values: Any) -> jax.Array:
    """Use every leaf, so that nothing is left out as dead code."""
    return jnp.stack([jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(values)]).sum()


def _peers(options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.quick:
        return []
    try:
        import sbx  # noqa: F401
    except ImportError:
        print('\nSBX is not installed; pip install -e ".[peers]" adds it to the comparison.')
        return []
    print("\nSBX on the same task, network, batch and updates a step")
    rows = []
    for agent in [agent for agent in options.agents if TASKS[agent].sbx]:
        for hidden in options.hidden:
            cell = Cell(agent, 1, hidden, min(options.capacities))
            times = interleaved({"ours": _training(cell), "sbx": _sbx(cell)}, options.repeats)
            ours, theirs = (1e6 / float(np.median(times[name])) for name in ("ours", "sbx"))
            ratios = np.quantile(np.array(times["sbx"]) / np.array(times["ours"]), [0.25, 0.5, 0.75])
            spread = f"{ratios[0]:.1f} to {ratios[2]:.1f}"
            print(f"  {agent:12} {hidden}x{hidden}  ours {ours:,.0f}  SBX {theirs:,.0f}  {ratios[1]:.1f}x  ({spread})")
            rows.append({"agent": agent, "hidden": hidden, "ours": ours, "sbx": theirs, "ratio": float(ratios[1])})
    return rows


def _sbx(cell: Cell) -> Repeat:
    warnings.filterwarnings("ignore")  # of its dependencies
    import sbx

    task = TASKS[cell.agent]
    if cell.agent == "ppo":
        options = {"n_steps": STEPS, "n_epochs": NUM_EPOCHS}
    else:
        options = {"learning_starts": 1_000, "train_freq": 1, "gradient_steps": 1, "buffer_size": cell.capacity}
    network = {"net_arch": [cell.hidden, cell.hidden]}
    model = getattr(sbx, task.sbx)(
        "MlpPolicy", task.environment, batch_size=BATCH_SIZE, policy_kwargs=network, **options
    )
    model.learn(1_000 + STEPS)

    def repeat() -> float:
        first, begun = model.num_timesteps, time.perf_counter()
        model.learn(STEPS, reset_num_timesteps=False)
        return 1e6 * (time.perf_counter() - begun) / (model.num_timesteps - first)

    return repeat


def interleaved(repeats: dict[Any, Repeat], count: int) -> dict[Any, list[float]]:
    """Run everything in turn, so that a disturbance of the machine affects all of them."""
    times: dict[Any, list[float]] = {name: [] for name in repeats}
    for _ in range(count):
        for name, repeat in repeats.items():
            times[name].append(repeat())
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
