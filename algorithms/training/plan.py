"""The plan of a training run: how much it collects, learns and tests, and when."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeVar

import jax

from algorithms.training import faults, plan_checks
from algorithms.training.suggestions import Suggested, require_multiple, round_up, suggested
from jaxrl_buffers import Mixture, ReplayBuffer
from jaxrl_buffers._checks import INT32_LIMIT, require_choice, require_integer
from jaxrl_buffers.rollouts import Rollout

__all__ = ["MAX_EPISODES", "Plan", "Suggested", "suggested"]
AXIS = "devices"  # the mesh axis along which devices share the environments of a seed
MAX_EPISODES = 1_000_000  # the most episodes of one evaluation, which are played side by side
Number = TypeVar("Number", int, jax.Array)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Plan:
    """The budget of a training run. A step is one transition. The steps of all environments are counted together.

    First, `start_steps` steps are collected with random actions. Then every iteration collects `update_every` steps and
    makes `num_updates` updates, until there are `total_steps` steps:

        total_steps = start_steps + num_iterations * update_every

    A `total_steps` that does not satisfy this equation is refused. The error names the nearest one that does.

    Offline updates come before all of this. They learn from rows that are stored already, such as a data set, and take
    no steps. Each offline update counts as one more iteration. With offline updates, the first steps are taken by the
    agent's policy instead of at random. With `total_steps=0` there are only offline updates.

    Numbers that are left out, and numbers of a preset, are suggestions. They are rounded up to fit the numbers that the
    user gave, and `num_updates` stays in proportion to `update_every`. If the equation still does not hold,
    `start_steps` grows. Numbers that the user gave never change. If they do not fit together, they are refused.

    PyTorchRL has different defaults in its classes and in its factories. The defaults here are those of the factories:
    `num_updates` is 50 (1 in the classes), `test_every` is 5,000 (1,000 in the classes) and `start_steps` is 1,000
    (except for DDQN, which has 20,000 in both).

    Args:
        total_steps: the number of environment steps in the whole run; 0 to learn offline only.
        num_envs: the number of environments that are stepped side by side.
        start_steps: the number of steps with random actions before the first update, a multiple of `num_envs`; 0 for
            on-policy agents.
        update_every: the number of steps in one iteration, a multiple of `num_envs`.
        num_updates: the number of updates in one iteration.
        mini_batch_size: the number of samples in one update.
        test_every: the number of steps between two evaluations, a multiple of `update_every`. 0 means a single
            evaluation at the end. During offline updates it is the number of updates between two evaluations. Metrics
            are written with each evaluation.
        num_test_episodes: the number of complete episodes in one evaluation.
        on_nan: what to do about numbers that are not finite. They are always counted. `warn` continues. `skip`
            continues and leaves out updates whose gradients are not finite. `stop` ends a run in a folder. The folder
            keeps its last finite checkpoint.
        offline_updates: the number of updates before the first step. They learn from rows that are stored already.
        devices: the number of devices, such as GPUs, that share the environments and the batches of each seed equally.
            `num_envs` and `mini_batch_size` are multiples of it. By default a run uses all devices of an accelerator,
            as far as they divide both. On a CPU it uses one; more are parts of the same CPU.

    Example:
        >>> Plan(total_steps=10_000, start_steps=1_000, update_every=1, num_updates=1).num_iterations
        9000
        >>> plan = Plan(total_steps=10_000, num_envs=16)
        >>> plan.start_steps, plan.update_every, plan.num_updates, plan.test_every
        (1040, 64, 64, 5056)
    """

    total_steps: int
    num_envs: int = Suggested(1)
    start_steps: int = Suggested(1_000)
    update_every: int = Suggested(50)
    num_updates: int = Suggested(50)
    mini_batch_size: int = Suggested(64)
    test_every: int = Suggested(5_000)
    num_test_episodes: int = 5
    on_nan: str = "warn"
    offline_updates: int = 0
    devices: int = Suggested(1)

    def __post_init__(self) -> None:
        require_integer("Plan", "offline_updates", self.offline_updates, 0)
        require_integer("Plan", "total_steps", self.total_steps, 0 if self.offline_updates else 1)
        for name in ("num_envs", "update_every", "num_updates", "mini_batch_size", "devices"):
            require_integer("Plan", name, getattr(self, name), 1)
        require_integer("Plan", "start_steps", self.start_steps, 0)
        require_integer("Plan", "test_every", self.test_every, 0)
        require_integer("Plan", "num_test_episodes", self.num_test_episodes, 1, MAX_EPISODES)
        require_choice("Plan", "on_nan", self.on_nan, faults.POLICIES)
        self._follow()
        require_multiple("num_envs", self.num_envs, "devices", self.devices)
        require_multiple("mini_batch_size", self.mini_batch_size, "devices", self.devices)
        require_multiple("start_steps", self.start_steps, "num_envs", self.num_envs)
        require_multiple("update_every", self.update_every, "num_envs", self.num_envs)
        if self.test_every:
            require_multiple("test_every", self.test_every, "update_every", self.update_every)
        self._require_total()
        if self.updates(self.num_iterations) >= INT32_LIMIT:
            raise ValueError(
                f"Plan(num_updates={self.num_updates}): {self.num_iterations} iterations would make 2**31 updates or "
                "more, which cannot be counted; lower `num_updates` or `total_steps`."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict of plain numbers and strings."""
        return {name: int(value) if isinstance(value, int) else value for name, value in vars(self).items()}

    def _follow(self) -> None:
        """Change suggestions such that they fit the other numbers."""
        if self.total_steps == 0:
            self._suggest(start_steps=0)
        self._suggest(num_envs=round_up(self.num_envs, self.devices))
        self._suggest(mini_batch_size=round_up(self.mini_batch_size, self.devices))
        self._collect(round_up(self.update_every, self.num_envs))
        self._suggest(start_steps=round_up(self.start_steps, self.num_envs))
        self._suggest(total_steps=round_up(self.total_steps, self.num_envs))
        learning = self.total_steps - self.start_steps
        rest = learning % self.update_every
        if self.start_steps and rest % self.num_envs == 0 and learning - rest >= self.update_every:
            self._suggest(start_steps=self.start_steps + rest)
        learning = self.total_steps - self.start_steps
        if learning % self.update_every and not isinstance(self.total_steps, Suggested):
            # Iterations of up to twice the suggested size give similar results.
            sizes = range(self.update_every, 2 * self.update_every + 1, self.num_envs)
            self._collect(next((size for size in sizes if learning % size == 0), self.update_every))
        self._suggest(test_every=round_up(self.test_every, self.update_every))
        learning = max(round_up(learning, self.update_every), self.update_every)
        self._suggest(total_steps=self.start_steps + learning)

    def _collect(self, update_every: int) -> None:
        """Change `update_every` if it is a suggestion, and keep the number of updates per step."""
        if isinstance(self.update_every, Suggested):
            num_updates = max(round(self.num_updates * update_every / self.update_every), 1)
            self._suggest(update_every=update_every, num_updates=num_updates)

    def _suggest(self, **values: int) -> None:
        for name, value in values.items():
            if isinstance(getattr(self, name), Suggested):
                object.__setattr__(self, name, Suggested(value))

    def _require_total(self) -> None:
        learning = self.total_steps - self.start_steps
        if self.total_steps == 0 == self.start_steps:
            return
        if learning >= self.update_every and learning % self.update_every == 0:
            require_integer("Plan", "total_steps", self.total_steps, 1)  # it may be too large after rounding up
            return
        can_wait = isinstance(self.start_steps, Suggested) and self.start_steps > 0
        unit = self.num_envs if can_wait else self.update_every
        near = [max(learning // unit + extra, self.update_every // unit) for extra in (0, 1)]
        near = sorted({self.start_steps + count * unit for count in near})
        raise ValueError(
            f"Plan(total_steps={self.total_steps}): it must be start_steps={self.start_steps} plus a multiple of "
            f"update_every={self.update_every}; the nearest total is {' or '.join(map(str, near))}"
            + ("." if learning > 0 else ", or lower `start_steps`.")
        )

    def fitted(self, buffer: ReplayBuffer | Mixture | Rollout, by_columns: bool = False) -> Plan:
        """Return the plan with its suggestions changed to fit a buffer.

        Args:
            buffer: the buffer from which the agent learns.
            by_columns: whether a minibatch of a rollout holds all rows of some environments, which memories need.
        """
        plan = copy.copy(self)
        if isinstance(buffer, Rollout):
            plan._suggest(start_steps=0, update_every=buffer.length * buffer.num_envs)
            count = max(round(plan.update_every / plan.mini_batch_size), 1)
            count = min(count, plan.envs_of_device) if by_columns else count
            plan._suggest(mini_batch_size=round_up(-(-plan.update_every // count), plan.devices))
            epochs = max(round(plan.num_updates / plan.num_minibatches), 1)
            plan._suggest(num_updates=epochs * plan.num_minibatches)
        else:
            plan._suggest(start_steps=plan._first_steps(buffer))
        return dataclasses.replace(plan)  # a new plan rounds the other suggestions

    def _first_steps(self, buffer: ReplayBuffer | Mixture) -> int:
        """Return a number of first steps from which one batch can be drawn.

        If `start_steps` would be too few even with one environment, return it unchanged.
        """
        num_samples = self.mini_batch_size
        if isinstance(buffer, Mixture):  # the run writes to its first buffer only
            num_samples, buffer = buffer.counts(num_samples)[0], buffer.buffers[0]
        around, stride = buffer.view.lookahead + buffer.lookback, buffer.view.stride
        if (self.start_steps - around) // stride < num_samples:
            return self.start_steps
        rows = around + stride * -(-num_samples // self.num_envs)
        return max(self.start_steps, rows * self.num_envs)

    @property
    def num_iterations(self) -> int:
        """The number of iterations in the whole run. Each offline update counts as one."""
        return self.offline_updates + (self.total_steps - self.start_steps) // self.update_every

    @property
    def iterations_per_test(self) -> int:
        """The number of iterations between two evaluations, where iterations are not offline updates."""
        most = max(self.num_iterations - self.offline_updates, 1)
        return min(self.test_every // self.update_every or most, most)

    @property
    def updates_per_test(self) -> int:
        """The number of offline updates between two evaluations."""
        return min(self.test_every or self.offline_updates, self.offline_updates)

    def interval(self, iteration: int) -> tuple[int, int]:
        """Return the iterations `[first, last)` between two evaluations that contain this iteration."""
        begin, end, length = self.offline_updates, self.num_iterations, self.iterations_per_test
        if iteration < self.offline_updates:
            begin, end, length = 0, self.offline_updates, self.updates_per_test
        first = begin + (iteration - begin) // length * length
        return first, min(first + length, end)

    def num_tests(self, iteration: int) -> int:
        """Return the number of evaluations in this many iterations, including one at the end of a partial interval."""
        offline = min(iteration, self.offline_updates)
        tests = -(-offline // self.updates_per_test) if offline else 0
        return tests + -(-(iteration - offline) // self.iterations_per_test)

    def updates(self, iteration: int) -> int:
        """Return the number of updates in this many iterations."""
        offline = min(iteration, self.offline_updates)
        return offline + (iteration - offline) * self.num_updates

    def steps(self, iteration: Number) -> Number:
        """Return the number of steps after this many iterations. It is 0 until the offline updates are done."""
        online = iteration - self.offline_updates
        has_begun = online > 0 if self.offline_updates else True
        return has_begun * (self.start_steps + online * self.update_every)

    @property
    def axis(self) -> str | None:
        """The name of the mesh axis along which devices share a seed; None if there is one device."""
        return AXIS if self.devices > 1 else None

    @property
    def envs_of_device(self) -> int:
        """The number of environments on each device."""
        return self.num_envs // self.devices

    @property
    def batch_of_device(self) -> int:
        """The number of samples that each device draws in one update."""
        return self.mini_batch_size // self.devices

    @property
    def skip_nonfinite(self) -> bool:
        """Whether updates are left out if their gradients are not finite."""
        return self.on_nan == "skip"

    @property
    def num_minibatches(self) -> int:
        """The number of minibatches in one epoch of an on-policy agent."""
        return -(-self.update_every // self.mini_batch_size)

    @property
    def num_epochs(self) -> int:
        """The number of epochs in one iteration: how often an on-policy agent learns from each step."""
        return self.num_updates // self.num_minibatches

    def check_buffer(
        self, buffer: ReplayBuffer | Mixture | Rollout, by_columns: bool = False, is_filled: bool = False
    ) -> None:
        """Refuse a buffer that has another number of environments, or that is too small.

        Args:
            buffer: the buffer from which the agent learns.
            by_columns: whether a minibatch of a rollout holds all rows of some environments, which memories need.
            is_filled: whether rows are stored already. If so, the first steps need not fill a batch.
        """
        if buffer.num_envs != self.num_envs:
            raise ValueError(
                f"the buffer is for {buffer.num_envs} environments and the plan for {self.num_envs}; "
                "give both the same `num_envs`."
            )
        num_samples = 0 if is_filled else self.mini_batch_size
        if isinstance(buffer, Rollout):
            plan_checks.check_rollout(self, buffer, by_columns)
        elif isinstance(buffer, Mixture):  # the run writes to its first buffer only
            plan_checks.check_replay(self, buffer.buffers[0], buffer.counts(num_samples)[0])
        else:
            plan_checks.check_replay(self, buffer, num_samples)
