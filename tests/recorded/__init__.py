"""What the code produced at a recorded commit, and the comparison with today's."""
