"""The result of `diagnose`: how far to trust a CP model, as text, table and HTML."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.notebooks import make_facts, make_paragraphs, make_text_table
from ..base.tables import format_table

if TYPE_CHECKING:
    from pandas import DataFrame

#: From this congruence on, components count as equal (Lorenzo-Seva and ten Berge, Methodology 2,
#: 2006).
_PARALLEL = 0.95

#: Smaller changes by further iterations are not worth a word.
_MOVING = 0.01


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """How far to trust a CP model, as `diagnose` finds it; shown as a table.

    Arrays have a number for each component; nan where nothing can be said, as of one that is zero.

    Attributes
    ----------
    error : float
        By least squares the norm of the residual at the known cells, relative to that of the data.
        Of counts the deviance, relative to that of the mean.
    error_rounding : float
        By how much rounding may have changed the error of least squares.
    gradient : float
        The norm of the loss's gradient, relative to that of its terms: 0 at a fixed point.
    condition : float
        The condition number of the model: at worst, by how much a small change of the data is
        multiplied in the components. 1 at least, inf if they are not determined, nan with biases.
    sizes : array (R,)
        The norms of the components.
    conditions : array (R,)
        At worst, by how much a small change of the data is multiplied in each component.
    partners : array (R,)
        The component to which each is most nearly parallel; -1 if there is no other.
    congruences : array (R,)
        Tucker's congruence with it: the product of the cosines in all modes. 1 or -1 if parallel.
    noise : array (R,)
        By how much of its norm noise has changed each component, at most, in 95 % of cases.
    unfinished : array (R,)
        By how much of its norm further iterations would change each component.
    digits : array (R,)
        The decimal digits of each component that neither would change.
    reason : str
        Why there are no digits; "" if there are some.
    components : tuple of int or str
        The names of the components.
    labels : dict of str to list
        For each mode the label of largest magnitude in each component; empty without labels.
    """

    error: float
    error_rounding: float
    gradient: float
    condition: float
    sizes: np.ndarray
    conditions: np.ndarray
    partners: np.ndarray
    congruences: np.ndarray
    noise: np.ndarray
    unfinished: np.ndarray
    digits: np.ndarray
    reason: str
    components: tuple[int | str, ...]
    labels: dict[str, list[Any]]

    @property
    def summary(self) -> str:
        """What a user should know, in one line."""
        digits = f"no digits, since {self.reason}"
        if not self.reason:
            digits = self._describe_digits()
        doubts = [
            *self._describe(np.isinf(self.conditions), "not determined"),
            *self._describe_unfinished(),
            *self._describe_pairs(),
            *self._describe(self.sizes == 0, "zero"),
        ]
        return "; ".join([digits, *doubts])

    @property
    def table(self) -> "DataFrame":
        """The numbers of each component as a DataFrame, a row for each; needs pandas."""
        import pandas

        return pandas.DataFrame(self._list_columns(), index=list(self.components))

    def __repr__(self) -> str:
        facts = format_table(self._list_facts().items(), "<")
        return "\n".join([facts, format_table(self._list_rows()), self.summary])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        tables = make_facts(self._list_facts()) + make_text_table(self._list_rows())
        return tables + make_paragraphs([self.summary])

    def _list_facts(self) -> dict[str, str]:
        """List what is said of the whole model as text, by name."""
        error = f"{self.error:.4g}"
        if not math.isnan(self.error_rounding):
            error += f" (rounding {self.error_rounding:.0e})"
        return {
            "error": error,
            "gradient": f"{self.gradient:.1e} of its terms",
            "condition": f"{self.condition:.3g}",
        }

    def _list_columns(self) -> dict[str, Any]:
        """List what is said of each component, by the heading of its column."""
        partners = [self.components[n] if n >= 0 else "" for n in self.partners]
        return {
            "size": self.sizes,
            "condition": self.conditions,
            "parallel to": partners,
            "congruence": self.congruences,
            "noise": self.noise,
            "unfinished": self.unfinished,
            "digits": self.digits,
            **self.labels,
        }

    def _list_rows(self) -> list[list[str]]:
        """Return a row for each component as texts, headings first."""
        columns = self._list_columns()
        columns["parallel to"] = list(map(_title, columns["parallel to"]))
        rows = [["component", *columns]]
        for name, *cells in zip(self.components, *columns.values(), strict=True):
            rows.append([_title(name), *map(_show, cells)])
        return rows

    def _describe_digits(self) -> str:
        """Say how many digits components have: first of those that differ from the others."""
        digits = {
            name: int(number)
            for name, number in zip(self.components, self.digits, strict=True)
            if not math.isnan(number)
        }
        counts = Counter(digits.values())
        if not counts:
            return "no component has digits"
        most_common, _ = counts.most_common(1)[0]
        if len(counts) == 1:
            return f"all components: {_count(most_common, 'digit')}"
        parts = []
        for number in sorted(counts):
            names = [name for name, own in digits.items() if own == number]
            if number != most_common:
                parts.append(f"{_name(names)}: {_count(number, 'digit')}")
        return f"{', '.join(parts)}, the others {most_common}"

    def _describe(self, is_meant: np.ndarray, what: str) -> list[str]:
        """Say what the components are that an array (R,) marks, if there are some."""
        names = [self.components[r] for r in np.flatnonzero(is_meant)]
        if not names:
            return []
        verb = "is" if len(names) == 1 else "are"
        return [f"{_name(names)} {verb} {what}"]

    def _describe_unfinished(self) -> list[str]:
        """Name the components that further iterations would change, by more than noise has."""
        is_moving = self.unfinished > np.fmax(self.noise, _MOVING)
        names = [self.components[r] for r in np.flatnonzero(is_moving)]
        if not names:
            return []
        return [f"further iterations would change {_name(names)}"]

    def _describe_pairs(self) -> list[str]:
        """Name each pair of nearly parallel components."""
        pairs = {}
        for r in np.flatnonzero(np.abs(self.congruences) >= _PARALLEL):
            pair = sorted((int(r), int(self.partners[r])))
            pairs[tuple(pair)] = self.congruences[r]
        return [
            f"{_name([self.components[n] for n in pair])} are nearly parallel ({congruence:.3f})"
            for pair, congruence in pairs.items()
        ]


def _show(cell: Any) -> str:
    """Show what is said of a component, "-" where nothing is."""
    if not isinstance(cell, float):
        return str(cell)
    if math.isnan(cell):
        return "-"
    return f"{cell:.2g}"


def _name(names: Sequence[int | str]) -> str:
    """Name components.

    >>> _name([2]), _name([0, 2, 5])
    ('component 3', 'components 1, 3 and 6')
    """
    if len(names) == 1:
        return f"component {_title(names[0])}"
    *first_names, last_name = names
    return f"components {', '.join(map(_title, first_names))} and {_title(last_name)}"


def _title(name: int | str) -> str:
    """Return a component's title for readers: its number from 1, or its name."""
    if isinstance(name, str):
        return name
    return f"{name + 1}"


def _count(number: int, noun: str) -> str:
    """Count things.

    >>> _count(1, "digit"), _count(0, "digit")
    ('1 digit', '0 digits')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
