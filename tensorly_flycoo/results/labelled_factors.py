"""Factors whose rows have names: tables, files and pictures of any model that has them."""

import functools
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..base.array_modules import Array, move
from ..base.checks import check_count, check_mode, require
from ..base.fit_record import FitRecord, attach, find_record
from ..base.tables import make_bars, make_line, make_table
from ..base.value_dtypes import FLOATS
from ..engines.tall import find_largest
from ..io import array_file
from ..io.files import FilePath
from ..io.fit_records import describe_record, list_record_arrays, read_record
from ..tensor.labelled import Labels, number_modes, take_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: Inches of a panel with bars or with a line, and of the headings at the left.
_BARS_WIDTH = 3.4
_LINE_WIDTH = 4.2
_HEADING_WIDTH = 1.2
#: Inches of a row of panels: for the axes, and for each bar.
_ROW_HEIGHT = 0.5
_BAR_HEIGHT = 0.17
#: Inches of a row of panels at least, and of the titles above all of them.
_MIN_HEIGHT = 1.4
_TITLE_HEIGHT = 0.8

#: Labels are shown as they are: a "$" does not begin a formula.
_TICKS: dict[str, Any] = {"fontsize": 8, "parse_math": False}

#: Longer names are cut, and lines with more points have no markers.
_MAX_NAME_LENGTH = 28
_MAX_MARKERS = 40

#: Elements below this share of a component's largest are not listed in text.
_LEAST_SHARE = 0.01

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
        """The numbers of the components, but names of those that are biases."""
        names: list[int | str] = list(range(np.max(self.rank)))
        record = self.flycoo or FitRecord()
        for r, mode in enumerate(record.bias_modes):
            if mode == len(self.names):
                names[r] = "mean"
            elif mode >= 0:
                names[r] = f"{self.names[mode]} bias"
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
        component 0, weight 5
          shop  b 0.8, a 0.6
          item  tea 1
        """
        tops = {name: self.top(name, n) for name in self.names}
        if self._head != "weights":
            return "\n".join(self._describe_modes(tops))
        width = max(map(len, map(str, tops)))
        lines = []
        for number, weights in enumerate(np.atleast_2d(self._read_head()).T.tolist()):
            title = self.components[number]
            heading = f"component {title}" if title == number else title
            lines.append(f"\n{heading}, weight {', '.join(f'{weight:.4g}' for weight in weights)}")
            for name, components in tops.items():
                is_shown = title in (number, f"{name} bias")  # elsewhere a bias is one number
                if is_shown:
                    lines.append(f"  {name:{width}}  {_list_entries(components[number])}")
        return "\n".join(lines)

    def _describe_modes(self, tops: Mapping[Any, list[dict[Any, float]]]) -> Iterator[str]:
        """Describe the components of each mode, which mix with those of others."""
        for name, components in tops.items():
            yield f"\n{name}"
            for number, top in enumerate(components):
                yield f"  component {number}  {_list_entries(top)}"

    def _repr_html_(self) -> str:
        """Return a table with a row for each component: bars for names, lines for an order."""
        head = [""]
        columns = [[f"{component}" for component in self.components[:_MAX_ROWS]]]
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
        weights = np.atleast_2d(self._read_head()).T
        largest = float(abs(weights).max())
        cells = []
        for weights_of_component in weights[:_MAX_ROWS]:
            names = [f"{weight:.3g}" for weight in weights_of_component]
            cells.append(make_bars(weights_of_component, names, largest))
        return cells

    def _draw_factor(self, mode: int, factor: np.ndarray) -> list[str]:
        """Draw each component of a factor: a line if its labels are ordered, else bars."""
        low, high = _find_limits(factor)
        if self.names[mode] in self.ordered:
            return [make_line(column, low, high) for column in factor.T[:_MAX_ROWS]]
        largest = max(abs(low), abs(high))
        tops = self.top(mode, _MAX_LABELS)[:_MAX_ROWS]
        return [make_bars(top.values(), map(_shorten, top), largest) for top in tops]

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
            rows = _find_top(column, n)
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

        Names get bars for the largest magnitudes, ordered labels a line; `intervals` are whiskers
        and bands. All panels of a mode have one scale.

        Parameters
        ----------
        top : int
            The number of bars.
        lines : iterable of str or int, optional
            The modes to draw as lines; by default `ordered`. Leave out those whose numbers are
            only names, such as the ids of users.

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
        if lines is None:
            lines = self.ordered
        line_modes = {self._find_mode(mode) for mode in lines}
        num_bars = self._count_bars(check_count(top, "top"), line_modes)
        grid = self._make_panels(num_bars, line_modes)
        for n, (name, factor) in enumerate(zip(self.names, self._list_factors(), strict=True)):
            panels = grid[: factor.shape[1], n]
            ends = self.intervals[n] if self.intervals else ()
            labels = self.labels[name]
            if n in line_modes:
                _draw_lines(panels, labels, move(factor, np), ends)
            else:
                _draw_bars(num_bars, panels, labels, move(factor, np), ends)
            panels[0].set_title(name, weight="bold", parse_math=False)
            for axes in panels[:-1]:
                axes.tick_params("x", labelbottom=False)
            for axes in grid[factor.shape[1] :, n]:  # a heading may be there, which stays
                axes.spines[:].set_visible(False)
                axes.set(xticks=[], yticks=[])
        for r, axes in enumerate(grid[:, 0]):
            self._draw_heading(r, axes)
        return grid[0, 0].figure

    def _count_bars(self, top: int, line_modes: set[int]) -> int:
        """Return how many bars a panel has room for: `top`, or fewer if no mode has so many."""
        sizes = [
            labels.size for n, labels in enumerate(self.labels.values()) if n not in line_modes
        ]
        return min(top, max(sizes, default=0))

    def _make_panels(self, num_bars: int, line_modes: set[int]) -> np.ndarray:
        """Make a figure with a panel for each component and mode: (R, ndim)."""
        widths = [_BARS_WIDTH] * len(self.names)
        for n in line_modes:
            widths[n] = _LINE_WIDTH
        height = max(_MIN_HEIGHT, _ROW_HEIGHT + _BAR_HEIGHT * num_bars)
        num_rows = len(self.components)
        figure = _make_figure(_HEADING_WIDTH + sum(widths), _TITLE_HEIGHT + height * num_rows)
        grid = figure.subplots(num_rows, len(widths), squeeze=False, width_ratios=widths)
        for axes in grid.flat:
            axes.spines[["top", "right"]].set_visible(False)
        return grid

    def _draw_heading(self, r: int, axes: "Axes") -> None:
        """Write the name of a component, and its weights, at the left of its first panel."""
        component = self.components[r]
        heading = f"{component}"
        if component == r:  # a number, and no name
            heading = f"component {component}"
        if self._head == "weights":
            weights = np.atleast_2d(self._read_head())[:, r]
            heading += "\nweight " + ", ".join(f"{weight:.3g}" for weight in weights)
        axes.set_ylabel(
            heading,
            weight="bold",
            color=f"C{r % 10}",
            rotation=0,
            ha="right",
            va="center",
            labelpad=12,
        )


def _find_top(column: np.ndarray, n: int) -> np.ndarray:
    """Return the places of the largest magnitudes in a column, all if it has fewer than `n`."""
    return find_largest(np.abs(column)[None], min(n, column.size))[0]


def _make_figure(width: float, height: float) -> "Figure":
    """Make an empty figure, in inches; say what to install if Matplotlib is missing."""
    matplotlib = require("matplotlib.figure", "plot needs Matplotlib: pip install matplotlib")
    figure = matplotlib.Figure(figsize=(width, height), layout="constrained")
    # A notebook knows how to show pyplot's figures, or any after "%matplotlib inline".
    figure._repr_png_ = functools.partial(_draw_png, figure)
    return figure


def _draw_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_bars(
    num_bars: int,
    panels: "Iterable[Axes]",
    labels: np.ndarray,
    factor: np.ndarray,
    ends: Sequence[np.ndarray],
) -> None:
    """Draw the largest elements of each component, the largest on top, and their intervals."""
    limits = _find_limits(factor, *ends)
    for r, axes in enumerate(panels):
        rows = _find_top(factor[:, r], num_bars)
        places = range(rows.size)
        axes.barh(places, factor[rows, r], color=f"C{r % 10}")
        if ends:
            lower, upper = ends
            axes.hlines(places, lower[rows, r], upper[rows, r], color="black", linewidth=1)
        axes.set_yticks(places, list(map(_shorten, take_labels(labels, rows))), **_TICKS)
        axes.set_ylim(num_bars - 0.5, -0.5)
        axes.set_xlim(*limits)
        axes.axvline(0, color="gray", linewidth=0.8)


def _draw_lines(
    panels: "Iterable[Axes]", labels: np.ndarray, factor: np.ndarray, ends: Sequence[np.ndarray]
) -> None:
    """Draw each column of a factor along its labels, in the band of its intervals."""
    is_scale = labels.dtype.kind in "iufM" and labels.size > 1  # numbers or dates
    if is_scale:
        order = np.argsort(labels, kind="stable")
        x = labels[order]
    else:
        order = np.arange(labels.size)
        x = order
    limits = _find_limits(factor, *ends)
    marker = ""
    if labels.size <= _MAX_MARKERS:
        marker = "."
    for r, axes in enumerate(panels):
        axes.plot(x, factor[order, r], marker=marker, color=f"C{r % 10}", linewidth=1)
        if ends:
            lower, upper = ends
            color = f"C{r % 10}"
            axes.fill_between(x, lower[order, r], upper[order, r], color=color, alpha=0.3, lw=0)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_ylim(*limits)
        _set_ticks(axes, labels, is_scale)


def _set_ticks(axes: "Axes", labels: np.ndarray, is_scale: bool) -> None:
    """Choose ticks for ordered labels: of dates, of numbers, or five names."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    kind = labels.dtype.kind
    if not is_scale:
        evenly = np.linspace(0, labels.size - 1, 5)
        places = np.unique(evenly.round().astype(int))
        shown: Any = labels[places]
        if kind != "M":  # as Python's objects; tolist would make numbers of dates
            shown = shown.tolist()
        axes.set_xticks(places, list(map(_shorten, shown)), rotation=20, ha="right", **_TICKS)
    elif kind == "M":
        locator = AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=kind in "iu"))


def _list_entries(top: Mapping[Any, float]) -> str:
    """Return labels and their elements as text, without those that are nearly 0."""
    least = _LEAST_SHARE * max(map(abs, top.values()), default=0)
    shown = {label: element for label, element in top.items() if abs(element) >= least}
    return ", ".join(f"{label} {element:.2g}" for label, element in shown.items())


def _find_limits(*arrays: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the scale that all panels of a mode share; it contains 0.

    >>> _find_limits(np.array([1.0, 2.0]))
    (0.0, 2.1)
    """
    low = float(np.fmin.reduce([0.0, *map(np.min, arrays)]))  # not nan
    high = float(np.fmax.reduce([0.0, *map(np.max, arrays)]))
    margin = 0.05 * (high - low) or 1.0
    return low - margin * (low < 0), high + margin


def _shorten(label: Any) -> str:
    """Return a label as text, cut if it is long."""
    text = str(label)
    if len(text) <= _MAX_NAME_LENGTH:
        return text
    return text[: _MAX_NAME_LENGTH - 1] + "…"
