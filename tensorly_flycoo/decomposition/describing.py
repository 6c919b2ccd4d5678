"""Docstrings that share the descriptions of parameters."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def describe_as(known: Callable[..., Any]) -> Callable[[_F], _F]:
    """Add to a docstring the parameters that it leaves out, as the docstring of `known` has them.

    The parameters are in the order of the signature. One that neither describes is a KeyError.
    """

    def describe(function: _F) -> _F:
        if function.__doc__ and known.__doc__:  # "python -OO" has none
            texts = _split(known.__doc__)[1]
            before, own, after = _split(function.__doc__)
            names = inspect.signature(function).parameters
            listed = dict.fromkeys((texts | own)[name] for name in names)  # some share a text
            function.__doc__ = before + "\n".join(listed) + after
        return function

    return describe


def _split(docstring: str) -> tuple[str, dict[str, str], str]:
    """Return a docstring's descriptions by parameter, and the text before and after them."""
    before, heading, rest = inspect.cleandoc(docstring).partition("Parameters\n----------\n")
    listed, returns, after = rest.partition("\n\nReturns\n")
    texts: dict[str, str] = {}
    for text in re.split(r"\n(?=\w)", listed):
        names = re.match(r"[\w, ]+", text)
        texts |= dict.fromkeys(names[0].strip().split(", "), text) if names else {}
    return before + heading, texts, returns + after
