"""The paper's experiments, claims and figures; the library does not depend on them."""
