"""Who takes part and how: client sampling, local steps, faults, random streams."""
