"""The one error that the trainer reports to a person instead of a traceback."""


class TrainingInputError(ValueError):
    """An argument or input file cannot be used; the message says expected, found and remedy."""
