"""The command `vitlab`, also as `python -m vitlab`; signals are answered from here on."""

from vitlab.console.interrupts import Interrupts


def main() -> None:
    """Run the command line."""
    with Interrupts() as interrupts:
        from vitlab.cli import main as run

        run(interrupts=interrupts)


if __name__ == "__main__":
    main()
