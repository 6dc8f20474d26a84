"""Runs on a Dask cluster: tasks go out, files come back, this process writes them."""
