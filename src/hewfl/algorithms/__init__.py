"""The paper's three algorithms."""
