"""A stock Flower app; the strategy is the only line that knows hewfl."""
