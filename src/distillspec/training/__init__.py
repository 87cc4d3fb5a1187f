"""Training: recipes as data, a loop as a generator of steps, checkpoints written whole."""
