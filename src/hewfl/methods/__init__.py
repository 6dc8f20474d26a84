"""Methods: local work × aggregator × server step; presets and the registry of names."""
