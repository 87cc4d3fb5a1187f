"""The one exception that means "the user can mend this"."""


class UserError(ValueError):
    """A user's mistake, told in one line: what was given, what was expected, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
