"""Methods: local work, an aggregator and a server step; the registry of names."""
