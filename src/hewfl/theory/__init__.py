"""The paper's theory as functions: one per statement, honest about where it holds."""
