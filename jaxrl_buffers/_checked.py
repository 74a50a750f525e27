"""Checks of misuse at run time. They are made only inside the context `checked()`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

import jax
from jax.experimental import checkify

# JAX traces a function again if this value has changed, also a function that the user jitted.
_asked_for = jax.make_user_context(default_value=False)


@contextlib.contextmanager
def checked() -> Generator[None]:
    """Look for misuse inside compiled programs, together with `jax.experimental.checkify`.

    These are found: `sample` with nothing to draw, `update_priorities` with numbers that are negative or not finite,
    `env_ids` that name an environment twice or one that does not exist, and `get_field` of rows that are not stored.
    Without this context none of them raises under `jit`, because checks make every call of a program slower.

    Both `checkify(function)` and the calls of its result must be inside the context. JAX refuses to compile a program
    with checks that `checkify` was not applied to.

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
    """Inside of `checked()`, check that `condition()` is true. Elsewhere `condition` is not called."""
    if _asked_for.value:
        checkify.check(condition(), message)
