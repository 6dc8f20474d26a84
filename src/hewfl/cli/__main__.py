"""`python -m hewfl.cli`: the same as `hewfl`."""

from hewfl.cli.app import app

if __name__ == "__main__":
    app()
