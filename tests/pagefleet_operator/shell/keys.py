"""A work queue that only notes what it is given."""

from pagefleet_operator.apiserver.cache import ServiceKey


class Keys:
    """Services to look at: at once, or with the patience of a failure's delay."""

    def __init__(self) -> None:
        self.added: list[ServiceKey] = []
        self.nudged: list[ServiceKey] = []

    def add(self, key: ServiceKey) -> None:
        self.added.append(key)

    def nudge(self, key: ServiceKey) -> None:
        self.nudged.append(key)
