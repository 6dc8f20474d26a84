"""The study of attackers that see everything and work together."""
