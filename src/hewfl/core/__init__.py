"""What everything speaks: records of a round, the two contracts, checks of input."""
