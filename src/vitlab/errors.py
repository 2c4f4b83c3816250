"""The error a user can mend."""


class UserError(ValueError):
    """Something the user can fix: one line that says what is wrong and what would work.

    The command line prints it as it is and exits with status 2; from Python it is a `ValueError`.

    Attributes:
        quiet: whether another process of the same run tells the user
    """

    quiet = False
