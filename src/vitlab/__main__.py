"""`python -m vitlab` is the command `vitlab`."""

from vitlab.cli import main

if __name__ == "__main__":
    main()
