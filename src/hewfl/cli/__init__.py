"""The `hewfl` command: parse, call, print. One file per command."""

from hewfl.cli.app import app as app
