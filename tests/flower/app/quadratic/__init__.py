"""A small app that the tests of hewfl.flower run."""
