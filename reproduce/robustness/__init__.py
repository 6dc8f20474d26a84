"""The study of clients of unequal quality: its specs, scores, figure and verdicts."""
