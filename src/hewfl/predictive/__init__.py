"""The certificate of a round before it is run, and the control that minimises it."""
