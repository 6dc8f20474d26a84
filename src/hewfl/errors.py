"""The exceptions of hewfl: one root, four children and a grandchild."""


class HewError(Exception):
    """Root of all errors raised on purpose by hewfl."""


class InvalidInputError(HewError, ValueError):
    """An argument breaks a rule; the text names argument, rule and value."""


class SolverError(HewError, ArithmeticError):
    """A solver missed its tolerance; the text gives the residual and likely causes."""


class DataError(HewError):
    """A data set is absent, damaged or not what it claims to be."""


class MissingExtraError(HewError, ImportError):
    """An optional package is needed; the text names the extra to install."""


class RuleError(InvalidInputError):
    """A rule broke the contract of an algorithm, or raised what it should not.

    The text names the lane, the round and the rule. It is a mistake in the rule's code,
    not a round that cannot be decided: nothing can go on.
    """
