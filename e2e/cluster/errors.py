"""The one error that the command line turns into a message."""


class BoxError(Exception):
    """The box cannot do what was asked; the text says why and, where there is one, what to do about it."""
