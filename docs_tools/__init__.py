"""Tools that build the site and list the public API; see CONTRIBUTING.md."""
