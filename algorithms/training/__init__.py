"""Training as pure functions, all of it inside compiled programs."""
