"""Simulation: rounds of many methods in lockstep on shared draws."""
