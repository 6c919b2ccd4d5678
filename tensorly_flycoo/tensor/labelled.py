"""A tensor that remembers what its indices stand for."""

import datetime
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ..base.checks import check_mode
from ..base.notebooks import make_tensor_table
from . import unknown as unknown_cells
from .tensor import FlycooTensor, check_axes, check_order, unpack_axes
from .unknown import Unknown

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataArray

#: Parameters that take modes: of decompositions, and of functions of TensorLy.
_MODE_OPTIONS = ("mode", "modes", "fixed_modes", "fixed_factors", "nn_modes")

#: Options that may be dicts of strengths by mode.
_STRENGTH_OPTIONS = ("smoothness", "l1_reg", "group_lasso")

_REDUCTIONS = ("sum", "mean", "max", "min")

#: Kinds of labels that have an order: numbers, time spans and dates, but not bools.
_ORDERED_KINDS = "iufmM"


class Labels(dict[str, np.ndarray]):
    """The labels of each mode's indices, by the name of the mode: "mode 0", "mode 1" by default.

    Dates of Python become `numpy.datetime64`. `ordered` are the modes whose labels have an order:
    those given, numbers, dates, and ordered categories of pandas.
    """

    def __init__(
        self, labels: Mapping[str, Any] | Sequence[Any], ordered: Iterable[str] = ()
    ) -> None:
        if isinstance(labels, Mapping):
            columns = dict(labels)
        else:
            columns = {f"mode {n}": column for n, column in enumerate(labels)}
        super().__init__({name: as_labels(column) for name, column in columns.items()})
        ordered_names = {*ordered, *getattr(labels, "ordered", ())}
        for name, column in columns.items():
            if is_ordered(column) or self[name].dtype.kind in _ORDERED_KINDS:
                ordered_names.add(name)
        self.ordered = tuple(name for name in self if name in ordered_names)

    def list_sizes(self) -> str:
        """List the modes and how many labels each has, as in "shop (2), day (7)"."""
        return ", ".join(f"{name} ({mode_labels.size})" for name, mode_labels in self.items())

    def check(self, shape: Sequence[int]) -> None:
        """Refuse labels that do not fit a tensor of this shape, are missing or occur twice."""
        if len(self) != len(shape):
            raise ValueError(f"labels names the modes {[*self]}, expected {len(shape)} modes")
        for (name, mode_labels), size in zip(self.items(), shape, strict=True):
            if mode_labels.shape != (size,):
                raise ValueError(
                    f"labels[{name!r}] has shape {mode_labels.shape}, expected ({size},), one for "
                    "each index"
                )
            _check_distinct(name, mode_labels)


def _check_distinct(name: str, labels: np.ndarray) -> None:
    """Refuse labels of a mode that are missing or occur twice."""
    missing_places = find_missing(labels)
    if missing_places.size:
        place = missing_places[0]
        raise ValueError(
            f"labels[{name!r}] is {labels[place]} at index {place}, expected a label for each "
            "index: leave such rows out, or name them"
        )
    # Sorted labels may be many, and are quick to check.
    is_sortable = labels.dtype != object or _are_text(labels)
    if is_sortable and (labels[1:] > labels[:-1]).all():
        return
    ((label, count),) = Counter(labels.tolist()).most_common(1)
    if count > 1:
        raise ValueError(f"labels[{name!r}] holds {label!r} twice, expected distinct ones")


def as_labels(labels: Any) -> np.ndarray:
    """Return labels as an array; dates and times become NumPy's, and masked labels None.

    Times with a zone become its local times, as in a table.

    >>> as_labels([datetime.date(2026, 1, 31)])
    array(['2026-01-31'], dtype='datetime64[D]')
    """
    if np.ma.isMaskedArray(labels) and np.ma.is_masked(labels):
        labels = labels.tolist()  # with None for those that are masked
    elif getattr(getattr(labels, "dtype", None), "time_zone", None):  # of polars
        labels = labels.dt.replace_time_zone(None)
    array = np.asarray(labels)
    if array.dtype != object or not array.size:
        return array
    if all(type(label) is datetime.date for label in array.flat):
        return array.astype("datetime64[D]")
    if all(isinstance(label, datetime.datetime) for label in array.flat):  # also pandas'
        times = np.array([_drop_zone(time) for time in array.flat])
        return times.reshape(array.shape)
    return array


def _drop_zone(time: Any) -> np.datetime64:
    """Return the local time of a datetime, or of a Timestamp of pandas, which has nanoseconds."""
    local = time.replace(tzinfo=None)
    if hasattr(local, "to_datetime64"):
        nanoseconds: np.datetime64 = local.to_datetime64()
        return nanoseconds
    return np.datetime64(local)


def drop_zones(labels: Any) -> Any:
    """Return labels to look for, in a list, a slice or alone, with local times for those of zones.

    Text stays text: pandas takes a part of a date.
    """
    if isinstance(labels, slice):
        return slice(*map(drop_zones, (labels.start, labels.stop, labels.step)))
    if isinstance(labels, str) or callable(labels):
        return labels
    array = as_labels(labels)
    if array.dtype.kind != "M":
        return labels
    return array[()]  # one date, if it was alone


def take_labels(labels: np.ndarray, places: Any) -> list[Any]:
    """Return some labels as Python's numbers and texts, but dates as NumPy's."""
    taken = labels[places]
    if taken.dtype.kind in "mM":
        return list(taken)
    return taken.tolist()


def find_missing(labels: np.ndarray) -> np.ndarray:
    """Return the places of labels that are missing: nan, NaT, None, or NA of pandas."""
    if labels.dtype.kind in "fmM":
        return np.flatnonzero(np.isnan(labels))
    if labels.dtype != object or _are_text(labels):
        return np.arange(0)
    return np.flatnonzero([_is_missing(label) for label in labels.tolist()])


def _are_text(labels: np.ndarray) -> bool:
    """Return whether all of some objects are text."""
    return {*map(type, labels.tolist())} <= {str}


def _is_missing(label: Any) -> bool:
    """Return whether a label is None, NA of pandas, or not equal to itself, as nan is not."""
    return label is None or type(label).__name__ == "NAType" or label != label


def is_ordered(column: Any) -> bool:
    """Return whether a column is an ordered categorical of pandas, or an Enum of polars."""
    dtype = getattr(column, "dtype", None)
    return getattr(dtype, "ordered", False) is True or type(dtype).__name__ == "Enum"


def number_modes(x: Any, modes: Any) -> Any:
    """Return a mode of `x`, or several, by number where given by name; whatever else as it is.

    Of a dict of options, those that are modes.
    """
    if isinstance(modes, dict):
        return _number_options(x, modes)
    if isinstance(modes, list | tuple | set):
        return [number_modes(x, mode) for mode in modes]
    labels = getattr(x, "labels", None)
    if not isinstance(modes, str) or modes == "all" or not labels:
        return modes
    if modes not in labels:
        raise ValueError(f"mode is {modes!r}, expected one of {[*labels]}, or a number")
    return [*labels].index(modes)


def _number_options(x: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with modes of `x` by number, also those that have a strength for each mode."""
    numbered = dict(options)
    for name in _MODE_OPTIONS:
        if name in options:
            numbered[name] = number_modes(x, options[name])
    for name in _STRENGTH_OPTIONS:
        strengths = options.get(name)
        if isinstance(strengths, dict):
            numbered[name] = {
                number_modes(x, mode): strength for mode, strength in strengths.items()
            }
    return numbered


def _make_method(name: str) -> Callable[..., Any]:
    """Make a method of a LabelledTensor: its tensor's, with all labels if a tensor results."""
    method = getattr(FlycooTensor, name)

    @functools.wraps(method)
    def keep_labels(x: "LabelledTensor", *operands: Any, **options: Any) -> Any:
        plain_operands = map(drop_labels, operands)
        result = method(x.tensor, *plain_operands, **options)
        return x._label(result, operands)

    return keep_labels


def _make_reduction(name: str) -> Callable[..., Any]:
    """Make a method that reduces modes, given by number or name, and keeps the others' labels.

    Unknown cells are skipped. A result of unknown cells only is unknown: nan in a vector, or as a
    number.
    """
    method = getattr(FlycooTensor, name)

    @functools.wraps(method)
    def reduce(x: "LabelledTensor", axis: Any = None) -> Any:
        reduced_modes = check_axes(number_modes(x, axis), x.ndim)
        kept = [mode for mode in range(x.ndim) if mode not in reduced_modes]
        if x.unknown is None:
            return x._label_modes(method(x.tensor, reduced_modes), kept)
        reduced, unknown = unknown_cells.reduce(x.tensor, x.unknown, reduced_modes, name)
        return x._label_modes(reduced, kept, unknown)

    return reduce


def _find_array(place: Any) -> np.ndarray | None:
    """Return an array of row numbers in an index, alone or before `...`; None if it is another."""
    if isinstance(place, tuple) and place[1:] == (...,):
        place = place[0]
    if isinstance(place, np.ndarray) and place.ndim == 1:
        return place
    return None


def drop_labels(x: Any) -> Any:
    """Return the tensor of a LabelledTensor, and anything else as it is."""
    if isinstance(x, LabelledTensor):
        return x.tensor
    return x


class LabelledTensor(NamedTuple("_Fields", [("tensor", FlycooTensor), ("labels", Labels)])):
    """A tensor together with the labels of its indices.

    TensorLy and this package take it wherever they take a sparse tensor, and compute with its
    `tensor`. Decompositions of it have its `labels`: a CP model is a `LabelledCP`. It has the
    attributes, methods and operators of its tensor, and their sparse results keep the labels; to be
    added, two tensors need the same ones. Where functions take a mode, they take its name:
    ``x.sum("day")``. It is a named tuple of two items, for ``tensor, labels = x``; to index the
    tensor, write ``x.tensor[...]``.

    Parameters
    ----------
    tensor : FlycooTensor
    labels : dict of str to sequence
        For each mode, in order, its name and the label of each index.
    unknown : "all" or sparse.COO, optional
        The unknown cells; by default there are none, and cells that the tensor does not store are
        zeros. With "all" these are unknown. A COO marks unknown cells as `parafac` takes it: with
        fill_value 1 and a stored 0 for each; in modes whose indices are all alike it has size 1.
    value_column : str, optional
        The column of the table from which the values came; None if rows were counted.

    Attributes
    ----------
    tensor : FlycooTensor
    labels : dict of str to array (I_n,)
        For each mode, in order, the name of its column and the label of each index: row i of factor
        n belongs to ``labels[column][i]``.
    unknown : None, "all" or sparse.COO
    value_column : str or None

    Raises
    ------
    TypeError
        If `tensor` is not a FlycooTensor, or `unknown` neither text nor a sparse.COO.
    ValueError
        If there is not one label for each index, or a label is missing (nan, NaT, None) or occurs
        twice in a mode; or `unknown` has another shape, fill_value or stored value.

    Notes
    -----
    Sums, means, maxima and minima skip unknown cells; what has no other cell is unknown, or nan in
    a vector. Elementwise operations keep `unknown`, which has to be the same in both tensors. With
    "all", a known cell may not become 0, which is not stored.

    See Also
    --------
    from_dataframe : Make one of a table.
    LabelledCP : What decompositions of it return.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2))
    >>> labels = {"shop": np.array(["a", "b"]), "day": np.array([7, 9])}
    >>> labelled = LabelledTensor(x, labels)
    >>> labelled
    <LabelledTensor: shop (2), day (2); dtype=float64, nnz=2>
    >>> labelled.norm()
    np.float64(5.0)
    """

    def __new__(
        cls,
        tensor: FlycooTensor,
        labels: Mapping[str, Any],
        unknown: Unknown = None,
        value_column: str | None = None,
    ) -> Self:
        if not isinstance(tensor, FlycooTensor):
            name = type(tensor).__name__
            raise TypeError(f"tensor is a {name}, expected a FlycooTensor, as from_coo makes")
        labels = Labels(labels)
        labels.check(tensor.shape)
        x = super().__new__(cls, tensor, labels)
        vars(x)["_unknown"] = unknown_cells.check_unknown(unknown, tensor.shape)
        vars(x)["_value_column"] = value_column
        return x

    @property
    def unknown(self) -> Unknown:
        """The unknown cells: None, "all" that are not stored, or a mask as `parafac` takes it."""
        unknown: Unknown = vars(self).get("_unknown")  # which a tuple's own `_make` leaves out
        return unknown

    @property
    def value_column(self) -> str | None:
        """The column of the table from which the values came; None if rows were counted."""
        column: str | None = vars(self)["_value_column"]
        return column

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a LabelledTensor takes no new {name!r}: make another, LabelledTensor(x.tensor, "
            "x.labels, unknown)"
        )

    def __getnewargs__(self) -> Any:
        return *self, self.unknown, self.value_column

    def _replace(self, **items: Any) -> Self:
        # What a tuple's own `_replace` would lose.
        facts = {"unknown": self.unknown, "value_column": self.value_column}
        return type(self)(**(self._asdict() | facts | items))

    __replace__ = _replace  # of copy.replace

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"LabelledTensor has no attribute {name!r}: see its .tensor")
        return getattr(self.tensor, name)

    def __getitem__(self, place: Any) -> Any:
        rows = _find_array(place)
        if rows is not None:  # of a fold, as scikit-learn takes it
            return self._take_rows(0, rows)
        try:
            return super().__getitem__(place)
        except TypeError:
            raise TypeError(
                f"a LabelledTensor is indexed by {place!r}, expected 0 for its tensor, 1 for its "
                "labels, or an array of rows of its first mode: call its take, or index its .tensor"
            ) from None

    def __dir__(self) -> list[str]:
        names = {*super().__dir__()} - {"count", "index"}  # a tuple's
        names |= {name for name in dir(self.tensor) if not name.startswith("_")}
        return sorted(names)

    def __repr__(self) -> str:
        shown = f"{self.labels.list_sizes()}; dtype={self.dtype}, nnz={self.nnz}"
        if self.unknown is not None:
            shown += f"; unknown: {self._describe_unknown()}"
        return f"<LabelledTensor: {shown}>"

    def _repr_html_(self) -> str:
        facts = {"modes": self.labels.list_sizes()}
        if self.unknown is not None:
            facts["unknown"] = self._describe_unknown()
        return make_tensor_table(self.tensor, "LabelledTensor", facts)

    def _describe_unknown(self) -> str:
        return unknown_cells.describe(self.unknown, self.shape, [*self.labels])

    def _label_modes(self, result: Any, modes: Sequence[int], unknown: Unknown = None) -> Any:
        """Return a tensor of these modes with their labels, and anything else as it is."""
        if not isinstance(result, FlycooTensor):
            return result
        names = [*self.labels]
        kept = {names[mode]: self.labels[names[mode]] for mode in modes}
        labels = Labels(kept, ordered=self.labels.ordered)
        return type(self)(result, labels, unknown, self.value_column)

    def _label(self, result: Any, operands: Iterable[Any] = ()) -> Any:
        """Return a tensor of the same cells with all labels, and anything else as it is.

        The labels and unknown cells of `operands`, of which it is made too, have to be the same.
        """
        if not isinstance(result, FlycooTensor):
            if hasattr(result, "factors") and self.unknown is not None:  # a ResidualTensor
                unknown = self._describe_unknown()
                raise ValueError(f"unknown are {unknown}, expected none: x.tensor has zeros there")
            return result
        names = [*self.labels]
        for operand in operands:
            if isinstance(operand, LabelledTensor) and [*operand.labels] != names:
                both = f"{names} and {[*operand.labels]}"
                raise ValueError(f"the modes are {both}, expected the same in both tensors")
            check_same_labels(operand, self, names=("one tensor", "the other"))
            self._check_same_unknown(operand)
        if isinstance(self.unknown, str):
            unknown_cells.check_kept(result.nnz, self.nnz)
        return self._label_modes(result, range(self.ndim), self.unknown)

    def _check_same_unknown(self, operand: Any) -> None:
        """Refuse another labelled tensor if other cells of it are unknown."""
        if not isinstance(operand, LabelledTensor) or operand is self:
            return
        if not unknown_cells.are_same(self.unknown, operand.unknown):
            both = f"{self._describe_unknown()} and {operand._describe_unknown()}"
            raise ValueError(f"unknown are {both}, expected the same in both tensors")
        if isinstance(self.unknown, str):
            known_in_either = (self.tensor != 0) + (operand.tensor != 0)
            unknown_cells.check_kept(known_in_either.nnz, min(self.nnz, operand.nnz))

    def transpose(self, *axes: Any) -> Any:
        """Reorder the modes, by number or name, as `FlycooTensor.transpose` does."""
        order = check_order(number_modes(self, unpack_axes(axes)), self.ndim)
        unknown = unknown_cells.transpose(self.unknown, order)
        return self._label_modes(self.tensor.transpose(order), order, unknown)

    if TYPE_CHECKING:  # methods of the tensor, which are made below

        def map(self, function: Callable[[Any], Any]) -> Self: ...
        def astype(self, dtype: Any) -> Self: ...
        def __add__(self, other: Any) -> Self: ...
        def __radd__(self, other: Any) -> Self: ...
        def __sub__(self, other: Any) -> Self: ...
        def __mul__(self, other: Any) -> Self: ...
        def __rmul__(self, other: Any) -> Self: ...
        def __truediv__(self, other: Any) -> Self: ...
        def __floordiv__(self, other: Any) -> Self: ...
        def __mod__(self, other: Any) -> Self: ...
        def __pow__(self, exponent: Any) -> Self: ...
        def __neg__(self) -> Self: ...
        def __pos__(self) -> Self: ...
        def __abs__(self) -> Self: ...
        def sum(self, axis: Any = None) -> Any: ...
        def mean(self, axis: Any = None) -> Any: ...
        def max(self, axis: Any = None) -> Any: ...
        def min(self, axis: Any = None) -> Any: ...

    T = property(transpose)
    __array_priority__ = FlycooTensor.__array_priority__
    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain_inputs = map(drop_labels, inputs)
        result = getattr(ufunc, method)(*plain_inputs, **kwargs)
        return self._label(result, inputs)

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        if not args or args[0] is not self:
            raise TypeError(f"numpy.{function.__name__} takes no LabelledTensor: use its .tensor")
        if function.__name__ in (*_REDUCTIONS, "transpose"):
            return getattr(self, function.__name__)(*args[1:], **kwargs)
        return self._label(function(self.tensor, *args[1:], **kwargs))

    def take(self, mode: int | str, labels: Any) -> Self:
        """Return the part with some labels of a mode, in their sequence.

        Parameters
        ----------
        mode : int or str
        labels : sequence, slice or label
            What ``loc`` of a `pandas.Series` with these labels takes, and times with a zone: they
            are its local times. A slice includes its stop.

        Raises
        ------
        ImportError
            If pandas is missing.
        ValueError
            If there is no such mode, a label is unknown or of another kind, or none is left.

        Examples
        --------
        >>> x = FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2))
        >>> x = LabelledTensor(x, {"shop": ["a", "b"], "day": [7, 9]})
        >>> x.take("shop", ["b"]), x.take("day", slice(8, None)).labels["day"]
        (<LabelledTensor: shop (1), day (2); dtype=float64, nnz=1>, array([9]))
        """
        import pandas

        number = check_mode(number_modes(self, mode), self.ndim)
        name, known_labels = [*self.labels.items()][number]
        rows_by_label = pandas.Series(range(known_labels.size), known_labels)
        try:
            rows = np.atleast_1d(rows_by_label.loc[drop_zones(labels)])
        except KeyError as error:
            text = f"labels holds some that mode {name!r} has not: {error.args[0]}"
            raise ValueError(text) from None
        except (TypeError, ValueError, LookupError, pandas.errors.IndexingError) as error:
            expected = f"expected labels such as {known_labels[0]!s}"
            raise ValueError(f"labels of mode {name!r}: {error}, {expected}") from None
        return self._take_rows(number, rows)

    def _take_rows(self, mode: int, rows: np.ndarray) -> Self:
        """Return the part with some rows of a mode, by their numbers, in their sequence."""
        modes_before = [slice(None)] * mode
        part: Any = self.tensor[(*modes_before, rows)]
        name, labels = [*self.labels.items()][mode]
        unknown = unknown_cells.take_rows(self.unknown, mode, rows, labels.size)
        labels_left = Labels(self.labels | {name: labels[rows]}, self.labels.ordered)
        return type(self)(part, labels_left, unknown, self.value_column)

    def to_frame(self, values: str = "value") -> "DataFrame":
        """Return the nonzeros as a table, in the sequence of `FlycooTensor.nonzeros`.

        Parameters
        ----------
        values : str
            The name of the column of values.

        Returns
        -------
        pandas.DataFrame
            With a row for each nonzero: its label in each mode, and its value.

        Raises
        ------
        ImportError
            If pandas is missing.
        ValueError
            If a mode is called as `values`.

        Examples
        --------
        >>> labels = {"shop": ["a", "b"], "day": [7, 9]}
        >>> x = LabelledTensor(FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2)), labels)
        >>> x.to_frame("count")
          shop  day  count
        0    a    9    3.0
        1    b    7    4.0
        """
        import pandas

        if values in self.labels:
            raise ValueError(f"values is {values!r}, expected another name than those of the modes")
        coords, numbers = self.tensor.nonzeros()
        columns = {}
        for (name, mode_labels), rows in zip(self.labels.items(), coords, strict=True):
            columns[name] = mode_labels[rows]
        columns[values] = numbers
        return pandas.DataFrame(columns)

    def to_xarray(self) -> "DataArray":
        """Return an `xarray.DataArray` of a `sparse.COO`, with the labels as coordinates.

        It stores nan at unknown cells, one by one. `from_xarray` goes back. Needs xarray.

        Raises
        ------
        ValueError
            If all cells without a row are unknown: too many to store.
        """
        import xarray

        data = self.tensor.to_coo()
        if self.unknown is not None:
            if isinstance(self.unknown, str):
                raise ValueError(
                    "all cells without a row are unknown, too many to store nan for each: take "
                    "x.tensor.to_coo(), where they are zeros, or x.to_frame(), a row for each known"
                )
            data = unknown_cells.mark_unknown(data, self.unknown)
        return xarray.DataArray(data, dict(self.labels), list(self.labels))


for _name in (
    "map",
    "astype",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__mod__",
    "__pow__",
    "__rpow__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__eq__",
    "__ne__",
    "__bool__",
    "__array__",
):
    setattr(LabelledTensor, _name, _make_method(_name))
for _name in _REDUCTIONS:
    setattr(LabelledTensor, _name, _make_reduction(_name))


def check_same_labels(
    x: object,
    labelled: object,
    skip: int | Sequence[int | None] | None = None,
    names: Sequence[str] = ("x", "the model"),
) -> None:
    """Raise a ValueError if the labels of `x` differ from those of another tensor or a model.

    Names of modes are compared too, except where nobody has named the modes. The labels of mode
    `skip`, or of several, may differ. If `x` or `labelled` has no labels, nothing is compared.
    """
    labels = getattr(labelled, "labels", None)
    if not isinstance(x, LabelledTensor) or not isinstance(labels, Labels):
        return
    _check_same_modes(x.labels, labels, names)
    skips = skip if isinstance(skip, Sequence) else [skip]
    pairs = zip(x.labels.items(), labels.values(), strict=True)
    for mode, ((name, mode_labels), expected) in enumerate(pairs):
        if mode in skips or mode_labels is expected or np.array_equal(mode_labels, expected):
            continue
        difference = _describe_difference(name, mode_labels, expected, names)
        raise ValueError(
            f"{difference}: make {names[0]} with from_dataframe(..., labels=), or pass "
            f"{names[0]}.tensor to ignore labels"
        )


def _check_same_modes(labels: Labels, expected: Labels, names: Sequence[str]) -> None:
    """Refuse modes with other names, or in another order; those of a list have no names."""
    both_are_named = _are_named(labels) and _are_named(expected)
    have_other_names = both_are_named and [*labels] != [*expected]
    if len(labels) == len(expected) and not have_other_names:
        return
    advice = f"pass {names[0]}.tensor to go by position"
    if {*labels} == {*expected}:
        advice = f"pass {names[0]}.transpose({', '.join(map(repr, expected))})"
    raise ValueError(
        f"{names[0]} has the modes {[*labels]}, expected {[*expected]}, as {names[1]} has: {advice}"
    )


def _are_named(labels: Labels) -> bool:
    """Return whether the modes have names other than those that a list of labels gives them."""
    return [*labels] != [*Labels([*labels.values()])]


def _describe_difference(
    name: str, labels: np.ndarray, expected: np.ndarray, names: Sequence[str]
) -> str:
    """Say where the labels of a mode differ: a place, or a label that one of them lacks."""
    first, second = names
    if labels.shape == expected.shape:
        place = int(np.argmax(labels != expected))
        both = f"{labels[place]} in {first} and {expected[place]} in {second}"
        return f"label {place} of mode {name!r} is {both}"
    text = (
        f"{first} has {labels.size} labels of mode {name!r}, expected {expected.size}, as "
        f"{second} has"
    )
    lacked = _find_lacked(labels, expected)
    if lacked is not None:
        return f"{text} ({first} lacks {lacked})"
    lacked = _find_lacked(expected, labels)
    if lacked is not None:
        return f"{text} ({second} lacks {lacked})"
    return text


def _find_lacked(labels: np.ndarray, wanted: np.ndarray) -> Any:
    """Return the first of the wanted labels that some labels lack, or None."""
    existing = set(labels.tolist())
    lacked = (label for label in wanted.tolist() if label not in existing)
    return next(lacked, None)
