"""Two thousand rounds under faults and kills; `make soak`."""
