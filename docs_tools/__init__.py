"""How the documentation is checked and its site is built; see docs/site.md."""
