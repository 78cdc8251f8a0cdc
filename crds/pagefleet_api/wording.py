"""Numbers as people read them, the same way everywhere. Pure."""


def percent(share: float, decimals: int = 0) -> str:
    """A share of 1 in per cent: 0.75 is "75 %"."""
    return f"{share * 100:.{decimals}f} %"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 pod", "3 pods"; for nouns with a plural in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
