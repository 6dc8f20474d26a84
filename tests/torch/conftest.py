"""What ranks load is not collected for doctests: it changes the process it is in."""

collect_ignore = ["loaded.py", "pool.py"]
