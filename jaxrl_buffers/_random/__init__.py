"""Random numbers: JAX's own hash without a loop, and integers."""
