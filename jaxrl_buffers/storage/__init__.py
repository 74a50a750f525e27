"""Where rows are kept: a ring of time, one column an environment."""

from jaxrl_buffers.storage.ring import Reader, Ring

__all__ = ["Reader", "Ring"]
