"""The one exception for mistakes that the user can mend: the command line shows it as one line and exits with 2."""


class InputError(ValueError):
    """A bad option, file or value, said in one sentence that names the value, the limit and the way out."""
