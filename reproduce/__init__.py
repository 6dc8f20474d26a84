"""The paper's experiments: the only room that knows claims and figure numbers."""
