"""The exceptions of hewfl; all derive from `HewError`."""


class HewError(Exception):
    """Root of all errors raised on purpose by hewfl.

    Examples:
        >>> import numpy as np
        >>> from hewfl import combine
        >>> try:
        ...     combine(np.ones((2, 3)), [0.5])
        ... except HewError as error:
        ...     print(type(error).__name__)
        InvalidInputError
    """


class InvalidInputError(HewError, ValueError):
    """An argument breaks a rule; the text names argument, rule and value.

    Examples:
        >>> from hewfl import FedAvg
        >>> try:
        ...     FedAvg(-1.0)
        ... except InvalidInputError as error:
        ...     print(error)
        `learning_rate` must be a positive finite number; got -1.0
    """


class SolverError(HewError, ArithmeticError):
    """A solver missed its tolerance; the text gives the residual and likely causes.

    Examples:
        >>> issubclass(SolverError, ArithmeticError)  # so that it is caught as one
        True
    """


class DataError(HewError):
    """A data set is absent, damaged or not what it claims to be.

    Examples:
        >>> from hewfl.data import load
        >>> load("no-such-file.npz")
        Traceback (most recent call last):
        hewfl.errors.DataError: ...
    """


class MissingExtraError(HewError, ImportError):
    """An optional package is needed; the text names the extra to install.

    Examples:
        >>> issubclass(MissingExtraError, ImportError)  # so that it is caught as one
        True
    """


class RuleError(InvalidInputError):
    """A rule broke the contract of an algorithm, or raised what it should not.

    The text names the entry, the round and the rule. It is a mistake in the rule's
    code, not a round that cannot be decided: nothing can go on.

    Examples:
        >>> issubclass(RuleError, InvalidInputError)  # so that it is caught as one
        True
    """
