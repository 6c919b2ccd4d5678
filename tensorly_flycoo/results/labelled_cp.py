"""A CP model whose rows have names: tables, files, pictures and rows for new data."""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import check_count, check_mode, require
from ..base.tables import make_bars, make_line, make_table
from ..engines.tall import column_norms, find_extremes
from ..io import array_file
from ..io.dataframe import from_dataframe, open_table, read_rows
from ..io.files import FilePath
from ..loop.cp_model import MARKS, read_marks
from ..ops.cp_entries import cp_to_entries, take_model
from ..tensor.labelled import Labels, number_modes
from .fold_in import fold_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: Inches of a panel with bars or with a line, and of the headings at the left.
_BARS_WIDTH, _LINE_WIDTH, _HEADING_WIDTH = 3.4, 4.2, 1.2
#: Inches of a row of panels: for the axes, and for each bar.
_ROW_HEIGHT, _BAR_HEIGHT = 0.5, 0.17

#: Labels are shown as they are: a "$" does not begin a formula.
_TICKS: dict[str, Any] = {"fontsize": 8, "parse_math": False}

#: Longer names are cut, and lines with more points have no markers.
_MAX_NAME_LENGTH, _MAX_MARKERS = 28, 40

#: What a notebook shows at most: components, and labels of each.
_MAX_ROWS, _MAX_LABELS = 20, 5

_NEED = "tables of factors need pandas: pip install pandas"

#: TensorLy's class of a CPTensor, a TuckerTensor and so on.
_FACTORIZED: Any = CPTensor.__base__


class LabelledCP(CPTensor):
    """A CP model with a name for each mode and a label for each row of its factors.

    CP decompositions of a `LabelledTensor` return it. TensorLy and tlviz take it as the `CPTensor`
    that it is. Its components are brought into one form, which does not change the model:

    - the columns of the factors have norm 1, and the weights hold their norms;
    - components are sorted by weight, the largest first;
    - in each column, the element of largest magnitude is positive. The minus sign of a negative
      component goes to the last mode; if all its elements there have one sign, it goes to the mode
      whose positive and negative elements are most alike in size, if a mode has both.

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors)
        NumPy or CuPy arrays, which stay where they are.
    labels : dict of str to array (I_n,), or sequence of array (I_n,)
        The labels of each mode's rows, in order; distinct. A dict also gives the names.
    names : sequence of str, optional
        The names of the modes; by default the keys of `labels`.

    Attributes
    ----------
    weights, factors, shape, rank
        Those of the CPTensor.
    labels : dict of str to numpy.ndarray (I_n,)
    names : tuple of str
    ordered : tuple of str
        The modes whose labels have an order: numbers, dates, and ordered categories of pandas.
    components : tuple of int or str
        The names of the components, by which tables and pictures show them: their numbers, or in a
        model of `observed_parafac` with biases also "item bias" and "mean".
    observed_l2_reg, observed_scale, bias_modes
        Only of models of `observed_parafac`, which describes them.

    Raises
    ------
    ValueError
        If the number of labels or names does not match, or a name or label occurs twice.

    Notes
    -----
    tlviz draws and compares models: its functions take a LabelledCP, and those that show labels
    take `to_frames`. tlviz's own rule for signs reads the dense data; this one does not.

    Examples
    --------
    >>> import pandas as pd, tensorly as tl
    >>> from tensorly_flycoo import from_dataframe
    >>> sales = pd.DataFrame({
    ...     "shop": ["north", "north", "south", "south"],
    ...     "item": ["tea", "milk", "tea", "bread"],
    ...     "day": [1, 1, 2, 2],
    ... })
    >>> x = from_dataframe(sales, ["shop", "item", "day"])
    >>> with tl.backend_context("flycoo"):
    ...     cp = tl.decomposition.non_negative_parafac_hals(x, 2, init="random", random_state=0)
    >>> cp
    <LabelledCP of rank 2: shop (2), item (3), day (2)>
    >>> sorted(list(component) for component in cp.top("shop", 1))
    [['north'], ['south']]
    >>> weights, factors = cp
    >>> [factor.shape for factor in factors]
    [(2, 2), (3, 2), (2, 2)]
    """

    def __init__(
        self,
        cp_tensor: Any,
        labels: Mapping[str, Any] | Sequence[Any],
        names: Sequence[str] | None = None,
    ) -> None:
        weights, factors = take_model(cp_tensor)
        factors, labels = list(factors), Labels(labels, names)
        labels.check([factor.shape[0] for factor in factors])
        weights, marks = bring_into_form(weights, factors, read_marks(cp_tensor))
        self.__dict__.update(vars(self._from_parts(weights, factors, labels, marks)))

    @classmethod
    def _from_parts(
        cls, weights: Array, factors: list[Array], labels: Labels, marks: dict[str, Any]
    ) -> Self:
        """Make a model whose components stay in their order, with their signs."""
        model = cls.__new__(cls)
        CPTensor.__init__(model, (weights, factors))
        model.labels = labels
        model.__dict__.update(marks)
        return model

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.labels)

    @property
    def ordered(self) -> tuple[str, ...]:
        """The modes whose labels have an order."""
        return self.labels.ordered

    @property
    def components(self) -> tuple[int | str, ...]:
        """The numbers of the components, or what a bias is of."""
        modes = getattr(self, "bias_modes", (-1,) * self.rank)
        biases = [*(f"{name} bias" for name in self.names), "mean"]
        return tuple(r if n < 0 else biases[n] for r, n in enumerate(modes))

    def __repr__(self) -> str:
        modes = zip(self.names, self.shape, strict=True)
        listed = ", ".join(f"{name} ({size})" for name, size in modes)
        return f"<LabelledCP of rank {self.rank}: {listed}>"

    def _repr_html_(self) -> str:
        """Return a table with a row for each component: bars for names, lines for an order."""
        weights, rows = move(self.weights, np), []
        for r, weight in enumerate(weights[:_MAX_ROWS].tolist()):
            bar = make_bars([weight], [f"{weight:.3g}"], float(weights[0]))
            rows.append([f"{self.components[r]}", bar])
        for n, name in enumerate(self.names):
            factor = move(self.factors[n], np)
            limits = _find_limits(factor)
            tops = [] if name in self.ordered else self.top(n, _MAX_LABELS)
            for r, row in enumerate(rows):
                if name in self.ordered:
                    row.append(make_line(factor[:, r], *limits))
                else:
                    labels = map(_shorten, tops[r])
                    row.append(make_bars(tops[r].values(), labels, max(map(abs, limits))))
        if self.rank > _MAX_ROWS:
            rows.append(["...", f"{self.rank - _MAX_ROWS} more"])
        return make_table(rows, ["", "weight", *self.names], repr(self)[1:-1])

    def __eq__(self, other: object) -> bool:
        """Return whether weights, factors and labels are the same, to the bit."""
        if not isinstance(other, LabelledCP) or self.names != other.names:
            return False
        own, others = ([cp.weights, *cp.factors, *cp.labels.values()] for cp in (self, other))
        pairs = zip(own, others, strict=True)
        is_same = all(np.array_equal(move(a, np), move(b, np)) for a, b in pairs)
        return is_same and self.ordered == other.ordered

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
        >>> cp = LabelledCP((None, [np.array([[3.0], [-4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> cp.top("shop")
        [{'b': -0.8, 'a': 0.6}]
        """
        index, n = self._find_mode(mode), check_count(n, "n")
        factor, labels = move(self.factors[index], np), self.labels[self.names[index]]
        # tolist gives Python's numbers and text, but would turn dates into numbers.
        as_list = list if labels.dtype.kind in "mM" else np.ndarray.tolist
        count, components = min(n, labels.size), []
        for column in factor.T:
            sizes = np.abs(column)
            rows = np.flatnonzero(sizes >= np.partition(sizes, -count)[-count])  # only few to sort
            rows = rows[np.argsort(-sizes[rows], kind="stable")[:count]]
            components.append(dict(zip(as_list(labels[rows]), column[rows].tolist(), strict=True)))
        return components

    def to_frames(self) -> tuple[np.ndarray, list["DataFrame"]]:
        """Return the model as tlviz's functions expect it: weights, and factors as DataFrames.

        Returns
        -------
        weights : numpy.ndarray (R,)
        frames : list of pandas.DataFrame
            For each mode, a column for each component. The index has the labels and the name of
            the mode. Needs pandas.

        Examples
        --------
        >>> cp = LabelledCP((None, [np.array([[3.0], [4.0]]), np.array([[1.0]])]),
        ...                 {"shop": ["a", "b"], "item": ["tea"]})
        >>> weights, (shops, items) = cp.to_frames()
        >>> shops  # doctest: +NORMALIZE_WHITESPACE
                0
        shop
        a     0.6
        b     0.8
        """
        pandas = require("pandas", _NEED)
        frames = [
            pandas.DataFrame(move(factor, np), pandas.Index(labels, name=name), self.components)
            for factor, (name, labels) in zip(self.factors, self.labels.items(), strict=True)
        ]
        return move(self.weights, np), frames

    def to_tidy(self) -> "DataFrame":
        """Return all factors as one long table, with a row for each element.

        Returns
        -------
        pandas.DataFrame
            With the columns "mode" (the name), "label", "component" (from 0) and "value". Needs
            pandas.

        Examples
        --------
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
        table = require("pandas", _NEED).concat(tables, ignore_index=True)
        return table[["mode", "label", "component", "value"]]

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
        >>> cp = LabelledCP((None, [np.ones((2, 1)), np.ones((1, 1))]), [["a", "b"], [7]])
        >>> cp.save(path)
        >>> LabelledCP.load(path)
        <LabelledCP of rank 1: mode 0 (2), mode 1 (1)>
        """
        arrays = [("weights", self.weights), *array_file.number("factor", self.factors)]
        arrays += array_file.list_labels(self.labels)
        header = array_file.name_modes(self.labels) | read_marks(self)
        array_file.save_arrays(path, array_file.MODEL, header, arrays)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Load a model that `save` wrote, bit by bit, with its arrays on the host.

        Text labels become str objects.

        Raises
        ------
        OSError, ValueError
            As of `tensorly_flycoo.load`, of a saved LabelledCP.
        """
        with array_file.open_arrays(path, array_file.MODEL) as reader:
            labels = array_file.read_labels(reader)
            weights = reader.read("weights", (None,), array_file.FLOATS)
            factors = [
                reader.read(f"factor_{n}", (of.size, weights.size), (weights.dtype,))
                for n, of in enumerate(labels.values())
            ]
            marks = _read_marks(reader.header, len(factors), weights.size)
        # The model is in form already; bringing it into form again would change the last bits.
        return cls._from_parts(weights, factors, labels, marks)

    def plot(self, top: int = 8, lines: Iterable[str | int] | None = None) -> "Figure":
        """Draw the components: a row of panels for each, with a panel for each mode.

        Names get bars for the largest magnitudes, ordered labels a line. All panels of a mode have
        one scale.

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
        chosen = self.ordered if lines is None else lines
        line_modes, top = {self._find_mode(mode) for mode in chosen}, check_count(top, "top")
        widths = [_LINE_WIDTH if n in line_modes else _BARS_WIDTH for n in range(len(self.names))]
        sizes = [size for n, size in enumerate(self.shape) if n not in line_modes]
        num_bars = min(top, max(sizes, default=0))
        height = max(1.4, _ROW_HEIGHT + _BAR_HEIGHT * num_bars)
        figure = _make_figure(_HEADING_WIDTH + sum(widths), 0.8 + height * self.rank)
        grid = figure.subplots(self.rank, len(widths), squeeze=False, width_ratios=widths)
        for n, (name, column) in enumerate(zip(self.names, grid.T, strict=True)):
            factor = move(self.factors[n], np)
            if n in line_modes:
                _draw_lines(column, self.labels[name], factor)
            else:
                _draw_bars(column, self.top(n, num_bars), num_bars, factor)
            column[0].set_title(name, weight="bold", parse_math=False)
        place: dict[str, Any] = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 12}
        for r, (component, row) in enumerate(zip(self.components, grid, strict=True)):
            heading = f"component {component}" if component == r else component
            heading = f"{heading}\nweight {float(self.weights[r]):.3g}"
            row[0].set_ylabel(heading, weight="bold", color=f"C{r % 10}", **place)
            for axes in row:
                axes.spines[["top", "right"]].set_visible(False)
                axes.tick_params("x", labelbottom=r == self.rank - 1)
        return figure

    def predict(self, frame: Any) -> np.ndarray:
        """Compute the model's entry for each row of a table, such as ratings not yet given.

        Parameters
        ----------
        frame : table, as for `from_dataframe`
            With a column for each mode; other columns are ignored. Rows may repeat.

        Returns
        -------
        numpy.ndarray (num_rows,)
            In the sequence of the rows.

        Raises
        ------
        TypeError, ValueError
            As for `from_dataframe`, for instance if an entry is not a label of the model.

        Examples
        --------
        >>> import pandas as pd
        >>> cp = LabelledCP((None, [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]),
        ...                 {"user": ["ann", "bob"], "item": ["tea", "milk"]})
        >>> new = pd.DataFrame({"item": ["tea", "tea", "milk"], "user": ["bob", "ann", "bob"]})
        >>> cp.predict(new).round(6)
        array([6., 3., 8.])
        """
        coded, _ = read_rows(open_table(frame, self.names), self.names, None, self.labels, "raise")
        coords = np.stack([codes for codes, _ in coded.values()])
        return move(cp_to_entries(self, array_module(self.weights).asarray(coords)), np)

    def transform(
        self,
        frame: Any,
        mode: str | int,
        values: str | None = None,
        *,
        loss: str = "gaussian",
        non_negative: bool = False,
        observed: bool | None = None,
        l2_reg: float | None = None,
        **options: Any,
    ) -> "DataFrame":
        """Compute the factor rows of new labels of one mode, such as new users; see `fold_in`.

        Parameters
        ----------
        frame : pandas.DataFrame, polars.DataFrame or pyarrow.Table
            With a column for each mode, as for `from_dataframe`. The entries of `mode` may be new;
            those of all other modes must be labels of the model.
        mode : str or int
        values : str, optional
            The column of the values; by default, each line has the value 1.
        loss, non_negative, observed, l2_reg
            As for `fold_in`: "poisson_count" if the model gives means of counts; whether rows must
            not be negative; whether cells that `frame` lacks are unknown, not zeros; the ridge.
        **options
            Those of `from_dataframe`, such as ``aggregate``.

        Returns
        -------
        pandas.DataFrame
            A row for each distinct entry of the column `mode`, with a column for each component.

        Raises
        ------
        ValueError, TypeError
            If there is no such mode, or as for `from_dataframe` and `fold_in`: for instance if an
            entry of another mode is not a label of the model.

        Examples
        --------
        >>> import pandas as pd
        >>> cp = LabelledCP((None, [np.array([[1.0], [0.0]]), np.array([[3.0], [4.0]])]),
        ...                 {"user": ["ann", "bob"], "item": ["tea", "milk"]})
        >>> new = pd.DataFrame({"user": ["cy", "cy"], "item": ["tea", "milk"], "n": [6, 8]})
        >>> cp.transform(new, "user", "n")  # doctest: +NORMALIZE_WHITESPACE
                0
        user
        cy    2.0
        """
        pandas, index = require("pandas", _NEED), self._find_mode(mode)
        name, factor = self.names[index], self.factors[index]
        known = {other: labels for other, labels in self.labels.items() if other != name}
        place = {"dtype": factor.dtype, "device": "cuda" if is_cupy(factor) else "cpu"}
        is_observed = hasattr(self, "observed_l2_reg") if observed is None else observed
        options = {"zeros": "keep" if is_observed else "drop"} | options
        x_new = from_dataframe(frame, self.names, values, labels=known, **place, **options)
        rows = fold_in(
            self, x_new, index,
            loss=loss, non_negative=non_negative, observed=observed, l2_reg=l2_reg,
        )  # fmt: skip
        new = pandas.Index(x_new.labels[name], name=name)
        return pandas.DataFrame(move(rows, np), new, self.components)


def label_result(result: Any, labels: Mapping[str, np.ndarray]) -> Any:
    """Return the result of a decomposition with its CP model, if it has one, as a LabelledCP.

    A decomposition of another kind gets the attribute `labels`. Row-sharded factors are gathered.
    The CPTensor loses its factors: only one is kept twice.
    """
    if isinstance(result, tuple) and result and isinstance(result[0], _FACTORIZED):
        return label_result(result[0], labels), *result[1:]
    if not isinstance(result, CPTensor):
        if isinstance(result, _FACTORIZED):
            result.labels = Labels(labels)
        return result
    # A callback may have kept the list, but not the CPTensor.
    (given, factors), result.factors = take_model(result), []
    weights, marks = bring_into_form(given, factors, read_marks(result))
    return LabelledCP._from_parts(weights, factors, Labels(labels), marks)


def _read_marks(header: Mapping[str, Any], ndim: int, rank: int) -> dict[str, Any]:
    """Return the marks in the header of a file, and refuse wrong ones."""
    marks = {name: header[name] for name in MARKS if name in header}
    modes = marks.pop("bias_modes", [-1] * rank)
    is_right = all(type(number) is float and 0 < number < np.inf for number in marks.values())
    is_right &= type(modes) is list and len(modes) == rank
    if not (is_right and all(type(n) is int and -1 <= n <= ndim for n in modes)):
        raise ValueError(f"its header has {marks} and the bias_modes {modes}")
    return marks | ({"bias_modes": tuple(modes)} if "bias_modes" in header else {})


def bring_into_form(
    weights: Array | None, factors: list[Array], marks: dict[str, Any]
) -> tuple[Array, dict[str, Any]]:
    """Bring the factors into the form of a `LabelledCP`, in their list.

    Return the new weights, and the marks of the model for the new order of its components.
    """
    xp, dtype = array_module(factors[0]), factors[0].dtype
    old = np.ones(factors[0].shape[1]) if weights is None else move(weights, np).astype(np.float64)
    extremes = [find_extremes(factor) for factor in factors]
    signs = _choose_signs(old, *(np.array(of) for of in zip(*extremes, strict=True)))
    # Powers of two, exact, bring very large and small columns to where squares are accurate.
    shifts = np.frexp([np.maximum(largest, -smallest) for largest, smallest in extremes])[1] - 1
    shifts[np.abs(shifts) <= np.finfo(dtype).maxexp // 4] = 0
    scales, powers = np.frexp(np.abs(old))
    norms = []
    for n, shift in enumerate(shifts):
        if shift.any():
            factors[n] = factors[n] / xp.asarray(np.ldexp(1.0, shift), dtype)
            powers += shift
        norms.append(move(column_norms(factors[n]), np).astype(np.float64))
        mantissas, exponents = np.frexp(norms[n])
        scales, powers = scales * mantissas, powers + exponents
    sizes = np.ldexp(scales, powers)
    order = np.argsort(-sizes, kind="stable")
    for n, norm in enumerate(norms):
        factors[n] = factors[n].take(xp.asarray(order), axis=1)
        factors[n] /= xp.asarray((signs[n] * np.where(norm == 0, 1, norm))[order], dtype)
    if "bias_modes" in marks:
        marks = marks | {"bias_modes": tuple(marks["bias_modes"][r] for r in order)}
    return xp.asarray(sizes[order], dtype), marks


def _choose_signs(weights: np.ndarray, largest: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return the sign (ndim, R) of each column from the weights and its extreme elements."""
    signs = np.where(-smallest > largest, -1, 1)
    peaks = np.maximum(largest, -smallest)
    is_negative = (weights * signs.prod(axis=0) < 0) & (peaks > 0).all(axis=0)
    # How alike the signs of a column are in size: not above 0 if it has only one sign.
    balance = np.minimum(largest, -smallest) / np.where(peaks > 0, peaks, 1)
    is_last = (balance[-1] > 0) | (balance.max(axis=0) <= 0)
    taker = np.where(is_last, len(signs) - 1, balance.argmax(axis=0))
    signs[taker, np.arange(weights.size)] *= np.where(is_negative, -1, 1)
    return signs


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
    column: "list[Axes]", components: list[dict[Any, float]], num_bars: int, factor: np.ndarray
) -> None:
    """Draw the largest elements of each component, the largest on top."""
    limits = _find_limits(factor)
    for r, (axes, component) in enumerate(zip(column, components, strict=True)):
        places = range(len(component))
        axes.barh(places, list(component.values()), color=f"C{r % 10}")
        axes.set_yticks(places, [_shorten(label) for label in component], **_TICKS)
        axes.set_ylim(num_bars - 0.5, -0.5)
        axes.set_xlim(*limits)
        axes.axvline(0, color="gray", linewidth=0.8)


def _draw_lines(column: "list[Axes]", labels: np.ndarray, factor: np.ndarray) -> None:
    """Draw each column of a factor along its labels."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    kind = labels.dtype.kind
    is_scale = kind in "iufM" and labels.size > 1
    order = np.argsort(labels, kind="stable") if is_scale else np.arange(labels.size)
    x = labels[order] if is_scale else order
    places = np.unique(np.linspace(0, labels.size - 1, 5).round().astype(int))
    names = [_shorten(of) for of in (labels[places] if kind == "M" else labels[places].tolist())]
    limits, marker = _find_limits(factor), "." if labels.size <= _MAX_MARKERS else ""
    for r, axes in enumerate(column):
        axes.plot(x, factor[order, r], marker=marker, color=f"C{r % 10}", linewidth=1)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_ylim(*limits)
        if not is_scale:
            axes.set_xticks(places, names, rotation=20, ha="right", **_TICKS)
        elif kind == "M":
            locator = AutoDateLocator(maxticks=7)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=kind in "iu"))


def _find_limits(factor: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the scale that all panels of a mode share; it contains 0."""
    low, high = min(0.0, float(factor.min())), max(0.0, float(factor.max()))
    margin = 0.05 * (high - low) or 1.0
    return low - margin * (low < 0), high + margin


def _shorten(label: Any) -> str:
    text = str(label)
    return text if len(text) <= _MAX_NAME_LENGTH else text[: _MAX_NAME_LENGTH - 1] + "…"
