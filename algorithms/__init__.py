"""Off-policy algorithms as jitted train steps that thread a buffer state through."""
