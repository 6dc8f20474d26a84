"""`python -m hewfl.cli` is the command `hewfl`."""

from hewfl_command import main

if __name__ == "__main__":
    main()
