"""`$` in a container's command, arguments and values of its environment: the kubelet puts variables there.

`$(NAME)` is the variable's value, if the container has it, and `$$` is one `$`. What hooks run, paths, annotations and
what comes from Secrets is taken as it is. Source: `Expand` in k8s.io/kubernetes/third_party/forked/golang/expansion.
"""

from typing import NamedTuple


class Variable(NamedTuple):
    """A variable's value with text after it, as an argument."""

    name: str
    after: str = ""

    def __str__(self) -> str:
        return f"$({self.name}){literal(self.after)}"


def literal(text: str) -> str:
    """What the kubelet makes `text` of, whatever is in that and in the container's environment."""
    return text.replace("$", "$$")


def plain(text: str) -> str:
    """What the kubelet makes of a literal."""
    return text.replace("$$", "$")
