"""CP, Tucker and PARAFAC2 models with labels, and the function that labels any result."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import require
from ..base.fit_record import FitRecord, attach, find_record
from ..engines.tall import column_norms, find_extremes
from ..io import array_file
from ..io.dataframe import from_dataframe
from ..io.entries import find_places
from ..io.table_rows import open_table, read_rows
from ..loop.masks import extend_mask
from ..ops.cp_entries import cp_to_entries, take_model
from ..tensor.labelled import LabelledTensor, Labels, take_labels
from .fold_in import fold_in
from .labelled_factors import NEED_PANDAS, LabelledFactors

if TYPE_CHECKING:
    from pandas import DataFrame


class _NewRows(LabelledFactors):
    """Methods of a model of one tensor for new labels: find their rows, and add these to it."""

    def transform(
        self,
        frame: Any,
        mode: str | int,
        values: str | None = None,
        *,
        loss: str | None = None,
        non_negative: bool | None = None,
        observed: bool | None = None,
        l2_reg: float | None = None,
        confidence: str | None = None,
        **options: Any,
    ) -> "DataFrame":
        """Compute the factor rows of new labels of one mode, such as new users; see `fold_in`.

        Parameters
        ----------
        frame : table, as for `from_dataframe`
            With a column for each mode. The entries of `mode` may be new; those of all other modes
            must be labels of the model.
        mode : str or int
        values : str, optional
            The column of the values; by default the one from which the model's data came
            (``model.flycoo.value_column``). If their rows were counted, each row has the value 1.
        loss, non_negative, observed, l2_reg
            As for `fold_in`: by default, as the model was made.
        confidence : str, optional
            The column of the weights of the rows, for a model with a confidence.
        **options
            Those of `from_dataframe`, such as ``aggregate``, and ``missing=["item", "day"]`` for
            combinations without a row that were not measured.

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
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[1.0], [0.0]]), np.array([[3.0], [4.0]])]),
        ...                 {"user": ["ann", "bob"], "item": ["tea", "milk"]})
        >>> new = pd.DataFrame({"user": ["cy", "cy"], "item": ["tea", "milk"], "n": [6, 8]})
        >>> cp.transform(new, "user", "n")  # doctest: +NORMALIZE_WHITESPACE
                0
        user
        cy    2.0
        """
        pandas = require("pandas", NEED_PANDAS)
        index = self._find_mode(mode)
        x_new, rows = self._fold_in(
            frame,
            index,
            values,
            loss=loss,
            non_negative=non_negative,
            observed=observed,
            l2_reg=l2_reg,
            confidence=confidence,
            **options,
        )
        name = self.names[index]
        new_labels = pandas.Index(x_new.labels[name], name=name)
        columns = self.components[: self.factors[index].shape[1]]
        return pandas.DataFrame(move(rows, np), new_labels, columns)

    def extend(
        self, frame: Any, mode: str | int, values: str | None = None, **options: Any
    ) -> Self:
        """Return a model that has the rows of new labels too, so that it predicts for them.

        The old rows, the weights and all other factors keep their numbers, so columns of `mode` no
        longer have norm 1. Rows that were fitted together are better: fit again, from this model,
        when there are many new ones.

        Parameters
        ----------
        frame, mode, values, **options
            As for `transform`. The entries of `mode` must be new.

        Returns
        -------
        model of this class
            With the labels of `mode`, then the new ones, sorted among themselves.

        Raises
        ------
        ValueError, TypeError
            As of `transform`; and if an entry of `mode` is a label of the model already.

        Examples
        --------
        >>> import pandas as pd
        >>> from tensorly_flycoo import LabelledCP
        >>> cp = LabelledCP((None, [np.array([[1.0], [0.0]]), np.array([[3.0], [4.0]])]),
        ...                 {"user": ["ann", "bob"], "item": ["tea", "milk"]})
        >>> new = pd.DataFrame({"user": ["cy"], "item": ["tea"], "n": [6]})
        >>> longer = cp.extend(new, "user", "n")
        >>> longer.predict(pd.DataFrame({"user": ["cy", "ann"], "item": ["tea", "milk"]})).round(6)
        array([2.16, 4.  ])
        """
        index = self._find_mode(mode)
        x_new, rows = self._fold_in(frame, index, values, **options)
        name = self.names[index]
        old_labels = self.labels[name]
        new_labels = x_new.labels[name]
        is_old = find_places(new_labels, old_labels) >= 0
        if is_old.any():
            label = take_labels(new_labels, is_old)[0]
            raise ValueError(
                f"frame has {label!r} in column {name!r}, expected labels that are new"
            )
        factors = list(self.factors)
        factors[index] = array_module(rows).concatenate([factors[index], rows])
        all_labels = self.labels | {name: np.concatenate([old_labels, new_labels])}
        record = self.flycoo or FitRecord()
        mask = extend_mask(record.mask, x_new.unknown, index, x_new.shape, old_labels.size)
        record = record.replace(intervals=(), mask=mask)
        return self._rebuild(factors, Labels(all_labels, self.labels.ordered), record)

    def _fold_in(
        self,
        frame: Any,
        index: int,
        values: str | None,
        *,
        loss: str | None = None,
        non_negative: bool | None = None,
        observed: bool | None = None,
        l2_reg: float | None = None,
        confidence: str | None = None,
        **options: Any,
    ) -> tuple[LabelledTensor, Array]:
        """Make the tensor of a table with new labels of a mode; return it and their rows."""
        record = self.flycoo or FitRecord()
        factor = self.factors[index]
        old_labels = dict(self.labels)
        del old_labels[self.names[index]]
        is_observed = observed
        if observed is None:
            is_observed = record.absent == "unknown"
        defaults: dict[str, Any] = {
            "dtype": factor.dtype,
            "device": "cuda" if is_cupy(factor) else "cpu",
            "zeros": "keep" if is_observed else "drop",
            "missing": "raise",
        }
        options = defaults | options
        column = values
        if values is None:
            column = record.value_column
        x_new = from_dataframe(frame, self.names, column, labels=old_labels, **options)
        weights = None
        if confidence is not None:
            # In the same rows, with the same labels.
            options |= {"labels": x_new.labels, "zeros": "raise", "missing": "raise"}
            weights = from_dataframe(frame, self.names, confidence, **options)
        rows = fold_in(
            self,
            x_new,
            index,
            loss=loss,
            non_negative=non_negative,
            observed=observed,
            l2_reg=l2_reg,
            confidence=weights,
        )
        return x_new, rows

    def _rebuild(self, factors: list[Array], labels: Labels, record: FitRecord) -> Self:
        """Return a model with other factors, whose components stay as they are."""
        raise NotImplementedError


class LabelledCP(_NewRows, CPTensor):
    """A CP model with a name for each mode and a label for each row of its factors.

    CP decompositions of a `LabelledTensor` return it. TensorLy and tlviz take it as the `CPTensor`
    that it is. Its components are brought into one form, which does not change the model:

    - the columns of the factors have norm 1, and the weights hold their norms;
    - components are sorted by weight, the largest first, and biases come after all others;
    - in each column, the element of largest magnitude is positive. The minus sign of a negative
      component goes to the last mode; if all its elements there have one sign, it goes to the mode
      whose positive and negative elements are most alike in size, if a mode has both.

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors)
        NumPy or CuPy arrays, which stay where they are.
    labels : dict of str to array (I_n,), or sequence of array (I_n,)
        The labels of each mode's rows, in order; distinct. A dict also gives the names.

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
    flycoo : FitRecord
        How the model was made, which functions that take it ask; its file keeps it.

    Raises
    ------
    ValueError
        If the number of labels does not match, or a label occurs twice.

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

    _kind = array_file.CP

    def __init__(self, cp_tensor: Any, labels: Mapping[str, Any] | Sequence[Any]) -> None:
        weights, factors = take_model(cp_tensor)
        factors = list(factors)
        labels = Labels(labels)
        labels.check([factor.shape[0] for factor in factors])
        weights, record = _bring_into_form(weights, factors, find_record(cp_tensor))
        self.__dict__.update(vars(self._from_parts(weights, factors, labels, record)))

    @classmethod
    def _from_parts(
        cls, weights: Array, factors: list[Array], labels: Labels, record: FitRecord | None = None
    ) -> Self:
        """Make a model whose components stay in their order, with their signs."""
        model = cls.__new__(cls)
        CPTensor.__init__(model, (weights, factors))
        model.labels = labels
        return attach(model, record)

    def __eq__(self, other: object) -> bool:
        """Return whether weights, factors and labels are the same, to the bit."""
        if not isinstance(other, LabelledCP) or self.names != other.names:
            return False
        if self.ordered != other.ordered:
            return False
        arrays = [self.weights, *self.factors, *self.labels.values()]
        other_arrays = [other.weights, *other.factors, *other.labels.values()]
        pairs = zip(arrays, other_arrays, strict=True)
        return all(np.array_equal(move(a, np), move(b, np)) for a, b in pairs)

    @classmethod
    def _restore(cls, model: tuple, labels: Labels, header: array_file.Header) -> Self:
        weights, factors = model
        labels.check([len(factor) for factor in factors])
        # The model is in form already; bringing it into form again would change the last bits.
        return cls._from_parts(weights, factors, labels)

    def _rebuild(self, factors: list[Array], labels: Labels, record: FitRecord) -> Self:
        return self._from_parts(self.weights, factors, labels, record)

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
        table = open_table(frame, self.names)
        coded, _ = read_rows(table, self.names, None, self.labels, "raise")
        coords = np.stack([codes for codes, _ in coded.values()], dtype=np.int64)
        entries = cp_to_entries(self, array_module(self.weights).asarray(coords))
        return move(entries, np)


class LabelledTucker(_NewRows, TuckerTensor):
    """A Tucker model with a name for each mode and a label for each row of its factors.

    Tucker decompositions of a `LabelledTensor` return it; labels do not change its numbers. It has
    the errors, tables, pictures and files of a `LabelledCP`.

    Parameters
    ----------
    model : TuckerTensor or (core, factors)
    labels : dict of str to array (I_n,)

    Examples
    --------
    >>> core, factors = np.array([[2.0, 0.0]]), [np.array([[0.6], [-0.8]]), np.eye(2)]
    >>> model = LabelledTucker((core, factors), {"shop": ["a", "b"], "item": ["tea", "milk"]})
    >>> model, model.top("shop", 1)
    (<LabelledTucker of rank (1, 2): shop (2), item (2)>, [{'b': -0.8}])
    """

    _kind = array_file.TUCKER
    _head = "core"

    def _rebuild(self, factors: list[Array], labels: Labels, record: FitRecord) -> Self:
        return attach(type(self)((self.core, factors), labels), record)


class LabelledParafac2(LabelledFactors, Parafac2Tensor):
    """A PARAFAC2 model with names for its slices, their rows and their columns.

    `parafac2` of a `LabelledTensor`, or of a `RaggedTensor` with labels, returns it; labels do not
    change its numbers. It has the errors, tables, pictures and files of a `LabelledCP`; the rows
    there are those of :math:`P_k B`, slice after slice.

    Parameters
    ----------
    model : Parafac2Tensor or (weights, factors, projections)
    labels : dict of str to array
        Those of the slices, of the rows (one array for all slices, or a list with one for each),
        and of the columns. If slices share labels of rows, these become texts such as "ann: 3",
        with the label of the slice.

    Examples
    --------
    >>> factors = [np.ones((2, 1)), np.array([[2.0]]), np.ones((3, 1))]
    >>> projections = [np.array([[1.0]]), np.array([[0.6], [0.8]])]
    >>> labels = {"patient": ["ann", "bob"], "visit": [[3], [3, 7]], "code": ["x", "y", "z"]}
    >>> LabelledParafac2((None, factors, projections), labels).top("visit")
    [{'ann: 3': 2.0, 'bob: 7': 1.6, 'bob: 3': 1.2}]
    """

    _kind = array_file.PARAFAC2
    _lists = ("factor", "projection")

    def __init__(self, model: Any, labels: Mapping[str, Any]) -> None:
        _, _, projections = model
        num_rows = sum(len(projection) for projection in projections)
        super().__init__(model, _join_rows(labels, num_rows))

    def _list_factors(self) -> list[Array]:
        slices, blueprint, columns = self.factors
        rows = array_module(blueprint).concatenate(self.projections) @ blueprint
        return [slices, rows, columns]


def label_result(result: Any, data: Any) -> Any:
    """Return the result of a decomposition, with the labels of its data if it is a model.

    Row-sharded factors are gathered. A CPTensor loses its factors, so that each is freed as soon as
    its copy in the new form is there.
    """
    if isinstance(result, tuple) and result:  # the model, and what else was asked for
        return label_result(result[0], data), *result[1:]
    record = find_record(result)
    if record is not None:
        record = record.replace(value_column=getattr(data, "value_column", None))
    if isinstance(result, TuckerTensor):
        return attach(LabelledTucker(result, data.labels), record)
    if isinstance(result, Parafac2Tensor):
        return attach(LabelledParafac2(result, data.labels), record)
    if not isinstance(result, CPTensor):
        return result
    weights, factors = take_model(result)
    # A callback may have kept the list, but not the CPTensor.
    result.factors = []
    weights, record = _bring_into_form(weights, factors, record)
    return LabelledCP._from_parts(weights, factors, Labels(data.labels), record)


def _join_rows(labels: Mapping[str, Any], num_rows: int) -> Labels:
    """Return the labels of a PARAFAC2 model, with the rows of all slices in one array."""
    (_, slice_labels), (name, rows), *_ = labels.items()
    rows_of_slices = rows
    if np.ndim(next(iter(rows), 0)) == 0:  # one array: of each slice, or in a file of all
        rows_of_slices = [rows] * (num_rows // max(1, len(rows)))
    joined: Any = np.concatenate(rows_of_slices)
    if len({*joined.tolist()}) < joined.size:
        joined = []
        for label, rows_of_slice in zip(slice_labels, rows_of_slices, strict=False):
            joined += [f"{label}: {row}" for row in rows_of_slice]
    ordered = {*getattr(labels, "ordered", ())} - {name}
    return Labels({**labels, name: joined}, ordered=ordered)


def _bring_into_form(
    weights: Array | None, factors: list[Array], record: FitRecord | None
) -> tuple[Array, FitRecord | None]:
    """Bring the factors into the form of a `LabelledCP`, in their list.

    Return the new weights, and the model's record for the new order of its components.
    """
    xp = array_module(factors[0])
    dtype = factors[0].dtype
    if weights is None:
        old_weights = np.ones(factors[0].shape[1])
    else:
        old_weights = move(weights, np).astype(np.float64)
    extremes = [find_extremes(factor) for factor in factors]
    largest = np.array([high for high, _ in extremes])
    smallest = np.array([low for _, low in extremes])
    signs = _choose_signs(old_weights, largest, smallest)
    # Powers of two, exact, bring very large and small columns to where squares are accurate.
    _, exponents_of_peaks = np.frexp(np.maximum(largest, -smallest))
    shifts = exponents_of_peaks - 1
    shifts[np.abs(shifts) <= np.finfo(dtype).maxexp // 4] = 0
    # Weights are products of norms, which may overflow: mantissas and exponents apart.
    scales, powers = np.frexp(np.abs(old_weights))
    norms = []
    for n, shift in enumerate(shifts):
        if shift.any():
            factors[n] = factors[n] / xp.asarray(np.ldexp(1.0, shift), dtype)
            powers += shift
        norm = move(column_norms(factors[n]), np).astype(np.float64)
        norms.append(norm)
        mantissas, exponents = np.frexp(norm)
        scales = scales * mantissas
        powers = powers + exponents
    new_weights = np.ldexp(scales, powers)
    is_bias = np.zeros(len(new_weights), bool)
    if record is not None and record.bias_modes:
        is_bias = np.asarray(record.bias_modes) >= 0
    order = np.lexsort((-new_weights, is_bias))  # by weight, and biases last
    for n, norm in enumerate(norms):
        divisors = signs[n] * np.where(norm == 0, 1, norm)
        factors[n] = factors[n].take(xp.asarray(order), axis=1)
        factors[n] /= xp.asarray(divisors[order], dtype)
    if record is not None and record.bias_modes:
        record = record.replace(bias_modes=tuple(record.bias_modes[r] for r in order))
    return xp.asarray(new_weights[order], dtype), record


def _choose_signs(weights: np.ndarray, largest: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return the sign (ndim, R) of each column from the weights and its extreme elements."""
    signs = np.where(-smallest > largest, -1, 1)
    peaks = np.maximum(largest, -smallest)
    is_negative = (weights * signs.prod(axis=0) < 0) & (peaks > 0).all(axis=0)
    # How alike in size the two signs of a column are: at most 0 if it has only one sign.
    balance = np.minimum(largest, -smallest) / np.where(peaks > 0, peaks, 1)
    is_last = (balance[-1] > 0) | (balance.max(axis=0) <= 0)
    taker = np.where(is_last, len(signs) - 1, balance.argmax(axis=0))
    signs[taker, np.arange(weights.size)] *= np.where(is_negative, -1, 1)
    return signs
