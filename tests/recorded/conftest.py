"""Runs of other packages are not collected for doctests."""

collect_ignore_glob = ["flower_runs.py", "torch_runs.py", "record.py", "machine.py"]
