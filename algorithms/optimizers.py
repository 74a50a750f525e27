"""Optimizers and schedules of optax, given by name, so that they can be written to a file of settings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from flax.core import FrozenDict

from jaxrl_buffers._checks import require_choice, require_number, shown

Schedule = Callable[[jax.Array], jax.Array]  # from a number of steps to a factor, such as a schedule of optax
Option = float | int | bool | str

OPTIMIZERS = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad"),
    *("fromage", "lamb", "lars", "lion", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "radam", "rmsprop"),
    *("rprop", "sgd", "sign_sgd", "sm3", "yogi"),
)
SCHEDULES = (
    *("constant_schedule", "cosine_decay_schedule", "cosine_onecycle_schedule", "exponential_decay"),
    *("linear_onecycle_schedule", "linear_schedule", "polynomial_schedule", "warmup_constant_schedule"),
    *("warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule"),
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of optax by its name, as in `SAC(space, optimizer=Optimizer("adamw", 3e-4))`.

    All fields are static, so a change of any field compiles the program again.

    Args:
        name: a function in `optax`, one of `OPTIMIZERS`.
        learning_rate: the learning rate.
        schedule: a factor on the steps of the optimizer, as a function of the number of steps so far. With most
            optimizers this is a factor on the learning rate.
        max_grad_norm: the largest global norm of the gradients. Gradients with a larger norm are scaled down to it
            before the optimizer gets them. None does not clip.
        options: other arguments of the function in `optax`, such as `{"weight_decay": 1e-4}`.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = Optimizer("adamw", 3e-4, max_grad_norm=0.5, options={"weight_decay": 1e-4})
        >>> state = optimizer.transformation.init(jnp.zeros(3))
    """

    name: str
    learning_rate: float
    schedule: Schedule | None = None
    max_grad_norm: float | None = None
    options: Mapping[str, Option] = FrozenDict()

    def __post_init__(self) -> None:
        require_choice("Optimizer", "name", self.name, OPTIMIZERS)
        require_number("Optimizer", "learning_rate", self.learning_rate, 0)
        if self.max_grad_norm is not None:
            require_number("Optimizer", "max_grad_norm", self.max_grad_norm, 0)
        object.__setattr__(self, "options", _checked_options("Optimizer", self.name, self.options))

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimizer as a gradient transformation of optax."""
        clip = [] if self.max_grad_norm is None else [optax.clip_by_global_norm(self.max_grad_norm)]
        optimizer = getattr(optax, self.name)(self.learning_rate, **self.options)
        schedule = self.schedule
        scale = [] if schedule is None else [optax.scale_by_schedule(lambda count: schedule(jnp.asarray(count)))]
        return optax.chain(*clip, optimizer, *scale)


@dataclasses.dataclass(frozen=True)
class OptaxSchedule:
    """A schedule of optax by its name, as in `SAC(space, schedule=OptaxSchedule("linear_schedule", {...}))`.

    In this library a schedule is a factor on a learning rate, so most schedules should begin with 1.

    Args:
        name: a function in `optax`, one of `SCHEDULES`.
        options: the arguments of the function in `optax`.

    Example:
        >>> schedule = OptaxSchedule("cosine_decay_schedule", {"init_value": 1.0, "decay_steps": 100})
        >>> print(schedule(jnp.int32(0)), schedule(jnp.int32(100)))
        1.0 0.0
    """

    name: str
    options: Mapping[str, Option] = FrozenDict()

    def __post_init__(self) -> None:
        require_choice("OptaxSchedule", "name", self.name, SCHEDULES)
        object.__setattr__(self, "options", _checked_options("OptaxSchedule", self.name, self.options))
        self._schedule  # noqa: B018  # refuses options that do not fit together

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the factor after `count` steps."""
        return jnp.asarray(self._schedule(count), jnp.float32)

    @property
    def _schedule(self) -> Schedule:
        try:
            return getattr(optax, self.name)(**self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"OptaxSchedule({self.name!r}, {dict(self.options)}): {error}") from None


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """A schedule that falls in a straight line from 1 to `final` over `num_steps` steps, and stays there.

    Example:
        >>> print(LinearDecay(100)(jnp.int32(25)))
        0.75
    """

    num_steps: int
    final: float = 0.0

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the factor after `count` steps."""
        done = jnp.minimum(count.astype(jnp.float32) / self.num_steps, 1)
        return 1 - (1 - self.final) * done


AnyOptimizer = optax.GradientTransformation | Optimizer
Optimizers = AnyOptimizer | Mapping[str, AnyOptimizer]  # one for all groups, or one for each named group


def _checked_options(owner: str, name: str, options: Mapping[str, Option]) -> FrozenDict[str, Option]:
    """Return the options of a function in optax as a hashable mapping. Refuse options that it does not have."""
    if not isinstance(options, Mapping):
        raise ValueError(f"{owner}(options={shown(options)}): give names with values, such as {{'b1': 0.9}}.")
    known = [option for option in inspect.signature(getattr(optax, name)).parameters if option != "learning_rate"]
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{owner}({name!r}, options={{{option!r}: ...}}): optax.{name} has no option {option!r}; "
                f"it has {', '.join(known) or 'none'}."
            )
        if not isinstance(value, Option):
            raise ValueError(
                f"{owner}({name!r}, options={{{option!r}: {shown(value)}}}): give a number, a string, True or False; "
                "for anything else pass the object of optax itself to the agent."
            )
    return FrozenDict(options)
