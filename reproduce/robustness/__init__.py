"""The robustness study: aggregators under faulty and Byzantine clients."""
