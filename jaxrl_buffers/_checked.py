"""Run-time checks of misuse, for those who ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

import jax
from jax.experimental import checkify

# JAX traces again what was traced under another value, also functions that the user jitted.
_asked_for = jax.make_user_context(default_value=False)


@contextlib.contextmanager
def checked() -> Generator[None]:
    """Look for misuse inside compiled programs; goes with `jax.experimental.checkify`.

    Found are: `sample` when there is nothing to draw, `update_priorities` with numbers that are negative or not finite,
    `env_ids` that name an environment twice or one that does not exist, `get_field` of rows that are not stored.
    Without it none of this raises under `jit`: programs then carry no effects, which would make every call slower.

    Both the function that is given to `checkify` and its calls stand inside the context. A program with checks that
    `checkify` does not know of is refused by JAX.

    Example:
        >>> import jax.numpy as jnp, jaxrl_buffers as jb
        >>> buffer = jb.uniform(8)
        >>> state = buffer.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
        >>> sample = jax.jit(lambda state, key: buffer.sample(state, key, 2))
        >>> print(sample(state, jax.random.key(0)).weights)
        [0. 0.]
        >>> with jb.checked():
        ...     error, _ = checkify.checkify(sample)(state, jax.random.key(0))
        >>> print(error.get().splitlines()[0])
        sample() found no start to draw; ask can_sample(state) first (`check` failed)
    """
    with _asked_for(True):
        yield


def check(condition: Callable[[], jax.Array], message: str) -> None:
    """Demand that `condition()` is true, if checks were asked for; else it is not even computed."""
    if _asked_for.value:
        checkify.check(condition(), message)
