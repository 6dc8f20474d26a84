"""Numbers as text, rounded outward: a printed bound is still a bound.

`format(x, ".3g")` rounds to nearest: a bound of 0.156459 would be printed as 0.156,
which nothing proves.
"""

from decimal import Context, Decimal

__all__ = ["format_lower", "format_upper"]


def format_upper(bound: float, digits: int = 3) -> str:
    """An upper bound with so many digits, never below it.

    Args:
        bound: the number.
        digits: significant ones, at least 1.

    Returns:
        Text that `float` reads as at least `bound`; a number that needs no more digits
        is printed as it is.

    Examples:
        >>> format_upper(0.156459), format_upper(0.05), format_upper(1.00000038, 6)
        ('0.157', '0.05', '1.00001')
    """
    text = format(bound, f".{digits}g")
    if float(text) < bound:
        above = Context(prec=digits).next_plus(Decimal(text))
        text = format(float(above), f".{digits}g")
    return text


def format_lower(bound: float, digits: int = 3) -> str:
    """A lower bound with so many digits, never above it.

    Args:
        bound: the number.
        digits: significant ones, at least 1.

    Returns:
        Text that `float` reads as at most `bound`.

    Examples:
        >>> format_lower(0.156559), format_lower(0.05)
        ('0.156', '0.05')
    """
    return format(-float(format_upper(-bound, digits)), f".{digits}g")
