"""Optimizers that can be written in a file: any of optax's by name, with its options, a schedule and clipping."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping

import jax
import optax
from flax.core import FrozenDict

from jaxrl_buffers._checks import require_choice, require_number, shown

Schedule = Callable[[jax.Array], jax.Array]  # from the number of updates made to a factor; any of optax's will do
Option = float | int | bool | str

NAMES = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad"),
    *("fromage", "lamb", "lars", "lion", "nadam", "nadamw", "novograd", "optimistic_adam_v2", "radam", "rmsprop"),
    *("rprop", "sgd", "sign_sgd", "sm3", "yogi"),
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """One of optax's optimizers by its name, as in `SAC(space, optimizer=Optimizer("adamw", 3e-4))`.

    All fields are static: a changed one compiles the program anew.

    Args:
        name: of a function in `optax`, one of `NAMES`.
        learning_rate: its learning rate.
        schedule: a factor on the learning rate, as a function of the number of steps that the optimizer has made.
        max_grad_norm: gradients of a larger global norm are scaled down to it first; None does not clip.
        options: other arguments of that function, such as `{"weight_decay": 1e-4}`.

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

    def __post_init__(self):
        require_choice("Optimizer", "name", self.name, NAMES)
        require_number("Optimizer", "learning_rate", self.learning_rate, 0)
        if self.max_grad_norm is not None:
            require_number("Optimizer", "max_grad_norm", self.max_grad_norm, 0)
        self._check_options()
        object.__setattr__(self, "options", FrozenDict(self.options))  # which can be hashed, as static fields must

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimizer as optax knows it."""
        rate, schedule = self.learning_rate, self.schedule
        given = rate if schedule is None else lambda count: rate * schedule(count)
        optimizer = getattr(optax, self.name)(given, **self.options)
        if self.max_grad_norm is None:
            return optimizer
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optimizer)

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise ValueError(
                f"Optimizer(options={shown(self.options)}): give names with values, such as {{'b1': 0.9}}."
            )
        known = [name for name in inspect.signature(getattr(optax, self.name)).parameters if name != "learning_rate"]
        for name, value in self.options.items():
            if name not in known:
                raise ValueError(
                    f"Optimizer({self.name!r}, options={{{name!r}: ...}}): optax.{self.name} has no option {name!r}; "
                    f"it has {', '.join(known) or 'none'}."
                )
            if not isinstance(value, Option):
                raise ValueError(
                    f"Optimizer({self.name!r}, options={{{name!r}: {shown(value)}}}): give a number, a string, True or "
                    "False; for anything else pass the optax transformation itself to the agent."
                )


AnyOptimizer = optax.GradientTransformation | Optimizer
Optimizers = AnyOptimizer | Mapping[str, AnyOptimizer]  # one for all groups of parameters, or some by group
