"""The command `vitlab`, also as `python -m vitlab`; signals are answered from here on."""

import logging
import os
import sys
import warnings

from vitlab.console.interrupts import Interrupts


def main() -> None:
    """Run the command line."""
    with Interrupts() as interrupts:
        from vitlab.cli import main as run

        hush()
        run(interrupts=interrupts)


def hush() -> None:
    """Keep lines and warnings of other libraries from the user, here and in new processes.

    They are about code that the user has not written. PYTHONWARNINGS, `python -W` and TORCH_LOGS
    still have them.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # else `logging` prints warnings itself
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"


if __name__ == "__main__":
    main()
