"""Training as pure functions, which run entirely inside of compiled programs."""
