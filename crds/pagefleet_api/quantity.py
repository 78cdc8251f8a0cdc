"""Kubernetes quantities ("512Mi", "0.5", "2e3") as exact numbers.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import re
from decimal import Decimal

PATTERN = r"^[+]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][-+]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?$"
"""Bounded on purpose: an exponent of seven digits is a number that takes minutes to write out."""
ANY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[KMGTPE]i|[numkMGTPE])?$"
"""The same without the bounds, and negative ones."""
FEWER_DIGITS = "must be written with at most 20 digits on each side of the point and 2 in the exponent"
"""For who wrote a quantity beyond these bounds."""
EXAMPLES = "'512Mi', '2Gi' or '0.5'"
_SYNTAX = re.compile(PATTERN)
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse(text: str) -> Decimal:
    """The number that a non-negative Kubernetes quantity stands for.

    Raises ValueError, naming the text and an example, when it is not one.
    """
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write a number such as {EXAMPLES}")
    number, suffix = match.group(1), match.group(3) or ""
    if suffix[:1] in ("e", "E") and suffix not in _SUFFIXES:
        return Decimal(number + suffix)
    return Decimal(number) * _SUFFIXES.get(suffix, Decimal(1))


def to_bytes(text: str) -> int:
    """Whole bytes in a quantity, rounded down. Raises ValueError as `parse` does."""
    return int(parse(text))
