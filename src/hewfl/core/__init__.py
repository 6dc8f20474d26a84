"""The mathematics of one round: exact weights and their certificates."""
