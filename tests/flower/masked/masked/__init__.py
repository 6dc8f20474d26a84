"""An app of two phases under secure aggregation."""
