"""Factors whose rows have names: tables, files and pictures of any model that has them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..base.array_modules import Array, move
from ..base.checks import check_count, check_mode, require
from ..base.fit_record import FitRecord, attach, find_record
from ..base.tables import make_bars, make_line, make_table
from ..base.value_dtypes import FLOATS
from ..io import array_file
from ..io.fit_records import describe_record, list_record_arrays, read_record
from ..io.places import FilePath
from ..tensor.labelled import Labels, number_modes, take_labels
from .pictures import (
    DrawnMode,
    clear,
    draw_bars,
    draw_heading,
    draw_lines,
    find_limits,
    find_top,
    is_scale,
    is_visible,
    make_panels,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: The most components that a notebook shows, and the most labels of each.
_MAX_ROWS = 20
_MAX_LABELS = 5

NEED_PANDAS = "tables of factors need pandas: pip install pandas"


class LabelledFactors:
    """The methods that labels add to TensorLy's model classes: tables, files and pictures."""

    labels: Labels
    factors: Any
    rank: Any

    #: The model's attributes: weights or core, and lists of matrices (here without the plural s).
    _head: ClassVar[str] = "weights"
    _lists: ClassVar[Sequence[str]] = ("factor",)
    #: The kind of the model's files.
    _kind: ClassVar[array_file.Kind]
    #: How the model was made, if it is known.
    flycoo: FitRecord | None = None

    def __init__(self, model: Any, labels: Mapping[str, Any]) -> None:
        super().__init__(model)  # type: ignore[call-arg]  # of the class of TensorLy
        self.labels = Labels(labels)
        self.labels.check([factor.shape[0] for factor in self._list_factors()])
        attach(self, find_record(model))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.labels)

    @property
    def ordered(self) -> tuple[str, ...]:
        """The modes whose labels have an order."""
        return self.labels.ordered

    @property
    def components(self) -> tuple[int | str, ...]:
        """The columns of tables: numbers of the components, from 0, but names of biases.

        Pictures and texts, for people, number them from 1.
        """
        record = self.flycoo or FitRecord()
        bias_modes = record.bias_modes or [-1] * int(np.max(self.rank))
        names: list[int | str] = []
        number = 0
        for mode in bias_modes:
            if mode == len(self.names):
                names.append("mean")
            elif mode >= 0:
                names.append(f"{self.names[mode]} bias")
            else:
                names.append(number)
                number += 1
        return tuple(names)

    @property
    def intervals(self) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """For each mode, the ends of the intervals of its factor, if `uncertainty` found some."""
        record = self.flycoo or FitRecord()
        return record.intervals

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of rank {self.rank}: {self.labels.list_sizes()}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.describe()}"

    def describe(self, n: int = 5) -> str:
        """Return the components as text, by the labels that matter most: what ``print`` shows.

        Parameters
        ----------
        n : int
            How many labels of each mode and component, at least 1.

        Returns
        -------
        str
            A paragraph for each component: its weight, and for each mode the `n` labels of largest
            magnitude with their factor elements, but for those below a hundredth of the largest. A
            bias is described in its own mode alone. A Tucker model, whose modes have components of
            their own, has a paragraph for each mode.

        Raises
        ------
        TypeError, ValueError
            If `n` is no positive integer.

        Examples
        --------
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[3.0], [4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> print(cp.describe())
        <BLANKLINE>
        component 1, weight 5 (100%)
          shop  b 0.8, a 0.6
          item  tea 1
        """
        tops = {name: self.top(name, n) for name in self.names}
        if self._head != "weights":
            return "\n".join(self._describe_modes(tops))
        width = max(map(len, map(str, tops)))
        lines = []
        for number in range(len(self.components)):
            heading = self._make_heading(number).replace("\n", ", ")
            lines.append(f"\n{heading}")
            for name, components in tops.items():
                if self._is_shown(number, name):
                    lines.append(f"  {name:{width}}  {_list_entries(components[number])}")
        return "\n".join(lines)

    def _describe_modes(self, tops: Mapping[Any, list[dict[Any, float]]]) -> Iterator[str]:
        """Describe the components of each mode, which mix with those of others."""
        for name, components in tops.items():
            yield f"\n{name}"
            for number, top in enumerate(components):
                yield f"  component {number + 1}  {_list_entries(top)}"

    def _repr_html_(self) -> str:
        """Return a table with a row for each component: bars for names, lines for an order."""
        head = [""]
        columns = [[self._name(r) for r in range(len(self.components))[:_MAX_ROWS]]]
        if self._head == "weights":
            head.append("weight")
            columns.append(self._draw_weights())
        for n, (name, factor) in enumerate(zip(self.names, self._list_factors(), strict=True)):
            head.append(f"{name}")
            columns.append(self._draw_factor(n, move(factor, np)))
        rows = list(itertools.zip_longest(*columns, fillvalue=""))
        if len(self.components) > _MAX_ROWS:
            rows.append(("...", f"{len(self.components) - _MAX_ROWS} more"))
        return make_table(rows, head, repr(self)[1:-1])

    def _draw_weights(self) -> list[str]:
        """Draw the weights of each component as bars: of a coupled model, of each block."""
        weights = self._list_weights().T
        largest = float(abs(weights).max())
        cells = []
        for weights_of_component in weights[:_MAX_ROWS]:
            names = [f"{weight:.3g}" for weight in weights_of_component]
            cells.append(make_bars(weights_of_component, names, largest))
        return cells

    def _draw_factor(self, mode: int, factor: np.ndarray) -> list[str]:
        """Draw each component of a factor: a line if its labels are a scale, else bars."""
        low, high = find_limits(factor)
        largest = max(abs(low), abs(high))
        is_line = mode in self._list_scales()
        cells = []
        for r, top in enumerate(self.top(mode, _MAX_LABELS)[:_MAX_ROWS]):
            if not self._is_shown(r, self.names[mode]):
                cells.append("")
            elif is_line:
                cells.append(make_line(factor[:, r], low, high))
            else:
                cells.append(make_bars(top.values(), map(shorten, top), largest))
        return cells

    def _list_factors(self) -> list[Array]:
        """Return the factor of each of `names`."""
        return list(self.factors)

    def _read_head(self) -> np.ndarray:
        """Return the weights, or the core, on the host."""
        return move(getattr(self, self._head), np)

    def _find_mode(self, mode: str | int) -> int:
        return check_mode(number_modes(self, mode), len(self.names))

    def top(self, mode: str | int, n: int = 8) -> list[dict[Any, float]]:
        """Return the labels that matter most in each component, the largest magnitude first.

        Parameters
        ----------
        mode : str or int
            Its name or its number; a ValueError if there is no such mode.
        n : int
            How many labels, at least 1; fewer if the mode has fewer.

        Returns
        -------
        list of dict
            For each of `components`, its `n` labels of largest magnitude, and their factor
            elements.

        Examples
        --------
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[3.0], [-4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> cp.top("shop")
        [{'b': -0.8, 'a': 0.6}]
        """
        index = self._find_mode(mode)
        n = check_count(n, "n")
        factor = move(self._list_factors()[index], np)
        labels = self.labels[self.names[index]]
        components = []
        for column in factor.T:
            rows = find_top(column, n)
            names = take_labels(labels, rows)
            elements = column[rows].tolist()
            components.append(dict(zip(names, elements, strict=True)))
        return components

    def to_frames(self) -> tuple[np.ndarray, list["DataFrame"]]:
        """Return the factors as DataFrames, after the weights, as tlviz's functions expect them.

        Returns
        -------
        weights : numpy.ndarray (R,)
            Of a Tucker model, the core; of a coupled one, those of each block.
        frames : list of pandas.DataFrame
            For each mode, a column for each component. The index has the labels and the name of
            the mode. Needs pandas.

        Examples
        --------
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[3.0], [4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> weights, (shops, items) = cp.to_frames()
        >>> shops  # doctest: +NORMALIZE_WHITESPACE
                0
        shop
        a     0.6
        b     0.8
        """
        pandas = require("pandas", NEED_PANDAS)
        frames = []
        for factor, (name, labels) in zip(self._list_factors(), self.labels.items(), strict=True):
            index = pandas.Index(labels, name=name)
            columns = self.components[: factor.shape[1]]
            frames.append(pandas.DataFrame(move(factor, np), index, columns))
        return self._read_head(), frames

    def to_tidy(self) -> "DataFrame":
        """Return all factors as one long table, with a row for each element.

        Returns
        -------
        pandas.DataFrame
            With the columns "mode" (the name), "label", "component" (of `components`) and "value",
            and "lower" and "upper" if there are `intervals`. Needs pandas.

        Examples
        --------
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[3.0], [4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> cp.to_tidy()
           mode label  component  value
        0  shop     a          0    0.6
        1  shop     b          0    0.8
        2  item   tea          0    1.0
        """
        tables = []
        for frame in self.to_frames()[1]:
            series = frame.unstack().rename_axis(["component", "label"])
            tables.append(series.reset_index(name="value").assign(mode=frame.index.name))
        table = require("pandas", NEED_PANDAS).concat(tables, ignore_index=True)
        table = table[["mode", "label", "component", "value"]]
        if self.intervals:
            table["lower"] = np.concatenate([lower.T.reshape(-1) for lower, _ in self.intervals])
            table["upper"] = np.concatenate([upper.T.reshape(-1) for _, upper in self.intervals])
        return table

    def save(self, path: FilePath) -> None:
        """Save the model with its labels to one ``.npz`` file, without pickles.

        Parameters
        ----------
        path : str or os.PathLike
            Replaced in one atomic step; kept if writing fails.

        Raises
        ------
        OSError, TypeError
            As of `tensorly_flycoo.save`; and if the name of a mode is not text.

        Examples
        --------
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.npz"
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.ones((2, 1)), np.ones((1, 1))]), [["a", "b"], [7]])
        >>> cp.save(path)
        >>> LabelledCP.load(path)
        <LabelledCP of rank 1: mode 0 (2), mode 1 (1)>
        """
        arrays = [(self._head, getattr(self, self._head))]
        for name in self._lists:
            matrices = getattr(self, f"{name}s")
            if isinstance(matrices, dict):
                matrices = [*matrices.values()]
            arrays += array_file.number(name, matrices)
        arrays += array_file.list_labels(self.labels)
        arrays += list_record_arrays(self)
        header = array_file.name_modes(self.labels) | describe_record(self) | self._describe()
        array_file.save_arrays(path, self._kind, header, arrays)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Load a model that `save` wrote, bit by bit, with its arrays on the host.

        Parameters
        ----------
        path : str or os.PathLike

        Returns
        -------
        model of this class
            Text labels are str objects.

        Raises
        ------
        OSError, ValueError
            As of `tensorly_flycoo.load`, of a saved model of this class.
        """
        with array_file.open_arrays(path, cls._kind) as reader:
            labels = array_file.read_labels(reader)
            head = reader.read(cls._head, dtypes=FLOATS)
            lists = [reader.read_list(name, head.dtype) for name in cls._lists]
            model = cls._restore((head, *lists), labels, reader.header)
            return attach(model, read_record(reader, len(labels), int(np.max(model.rank))))

    def _describe(self) -> array_file.Header:
        """Return the header's entries of the model's file, but for labels and record."""
        return {}

    @classmethod
    def _restore(cls, model: tuple, labels: Labels, header: array_file.Header) -> Self:
        """Make a model of what `load` has read."""
        return cls(model, labels)

    def plot(self, top: int = 8, lines: Iterable[str | int] | None = None) -> "Figure":
        """Draw the components: a row of panels for each, with a panel for each mode.

        Names get bars for the largest magnitudes, labels on a scale a line: dates, numbers at even
        steps, and categories with an order. `intervals` are whiskers and bands. All panels of a
        mode have one scale. A bias has a panel in its own mode only. At the left is the weight of
        each component, and its share of the sum of all weights.

        Parameters
        ----------
        top : int
            The number of bars.
        lines : iterable of str or int, optional
            The modes to draw as lines; by default those of `ordered` whose labels are on a scale.
            Leave out those whose numbers are only names, such as the ids of users.

        Returns
        -------
        matplotlib.figure.Figure
            ``figure.savefig(path)`` writes it.

        Raises
        ------
        ImportError
            If Matplotlib is missing.
        ValueError, TypeError
            If there is no such mode, `lines` is one text, or `top` is not an integer of 1 or more.
        """
        if isinstance(lines, str):
            raise TypeError(f"lines is {lines!r}, expected a list of modes, like [{lines!r}]")
        line_modes = self._list_scales()
        if lines is not None:
            line_modes = {self._find_mode(mode) for mode in lines}
        num_bars = self._count_bars(check_count(top, "top"), line_modes)
        grid = make_panels(len(self.components), len(self.names), num_bars, line_modes)
        for n, (name, factor) in enumerate(zip(self.names, self._list_factors(), strict=True)):
            ends = self.intervals[n] if self.intervals else ()
            mode = DrawnMode(name, self.labels[name], move(factor, np), ends)
            shown = [r for r in range(factor.shape[1]) if self._is_shown(r, name)]
            panels = {r: grid[r, n] for r in shown}
            if n in line_modes:
                draw_lines(panels, mode)
            else:
                draw_bars(num_bars, panels, mode)
            grid[0, n].set_title(name, weight="bold", parse_math=False)
            for r, axes in enumerate(grid[:, n]):
                if r not in panels:
                    clear(axes)
        for r, axes in enumerate(grid[:, 0]):
            draw_heading(axes, self._make_heading(r), r)
        return grid[0, 0].figure

    def _count_bars(self, top: int, line_modes: Iterable[int]) -> int:
        """Return how many bars a panel has room for: `top`, or fewer if no mode has so many."""
        sizes = [
            labels.size for n, labels in enumerate(self.labels.values()) if n not in line_modes
        ]
        return min(top, max(sizes, default=0))

    def _list_scales(self) -> set[int]:
        """List the modes that are drawn as lines by default: those with an order, but for ids."""
        return {
            n
            for n, name in enumerate(self.names)
            if name in self.ordered and is_scale(self.labels[name])
        }

    def _is_shown(self, r: int, name: Any) -> bool:
        """Return whether a component has something to show in a mode: a bias has in its own."""
        title = self.components[r]
        return isinstance(title, int) or title == f"{name} bias"

    def _name(self, r: int) -> str:
        """Return what a reader calls a component."""
        title = self.components[r]
        if isinstance(title, int):
            return f"component {title + 1}"
        return title

    def _make_heading(self, r: int) -> str:
        """Return the name of a component, its weights, and their shares of those of all."""
        heading = self._name(r)
        if self._head == "weights":
            shown = [
                f"{weights[r]:.3g} ({share:.0%})"
                for weights, share in zip(self._list_weights(), self._list_shares(r), strict=True)
            ]
            heading += "\nweight " + ", ".join(shown)
        return heading

    def _list_weights(self) -> np.ndarray:
        """Return the weights of each block, of a single one unless the model is coupled."""
        return np.atleast_2d(self._read_head())

    def _list_shares(self, r: int) -> np.ndarray:
        """Return the share of a component in the sum of all weights, in each block."""
        magnitudes = np.abs(self._list_weights())
        totals = magnitudes.sum(axis=1)
        return magnitudes[:, r] / np.where(totals > 0, totals, 1)


def _list_entries(top: Mapping[Any, float]) -> str:
    """Return labels and their elements as text, without those that are nearly 0."""
    largest = max(map(abs, top.values()), default=0)
    shown = {label: element for label, element in top.items() if is_visible(element, largest)}
    return ", ".join(f"{label} {element:.2g}" for label, element in shown.items())
