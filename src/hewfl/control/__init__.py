"""The certificate of a round before it is run, and the controls that minimise it."""
