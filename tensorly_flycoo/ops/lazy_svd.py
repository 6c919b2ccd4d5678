"""A stand-in for the SVD of an unfolding, computed when its leading vectors are sliced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.array_modules import Array, array_module
from ..base.checks import densify_error
from ..engines.out_of_memory import attempt
from ..svd.unfolding import LazyMatrix, Unfolding, complete_basis
from ..tensor.entrance import is_sparse, mirror
from ..tensor.lazy_array import LazyArray


def decompose_lazily(matrix: Any, full_matrices: bool) -> LazySVD | None:
    """Return a lazy SVD of a matrix that is sparse or never formed; None of any other."""
    if isinstance(matrix, LazyMatrix):
        return LazySVD(matrix, full_matrices)
    if not is_sparse(matrix):
        return None
    if matrix.ndim != 2:
        raise densify_error("tl.svd", matrix.shape, "tl.unfold(x, mode) makes it a matrix")
    return LazySVD(Unfolding(matrix, 0), full_matrices)


class LazySVD:
    """The SVD of a `LazyMatrix`, computed once the number of vectors is known.

    TensorLy asks for all singular vectors and then slices the leading ones: ``U[:, :n]``, ``S[:n]``
    and ``V[:n, :]``. Iterating over this object yields stand-ins for U, S and V. A slice of U or S
    is a fresh array; V has a column for every cell of the other modes and is never formed.
    `decompose` takes the number of vectors, as `LazyMatrix.svd` does, which it replaces.
    """

    def __init__(
        self, matrix: LazyMatrix, full_matrices: bool = False, decompose: Any = None
    ) -> None:
        self.matrix = matrix
        self.source = getattr(matrix, "source", None)  # what the caller has, where results go
        self.full_matrices = full_matrices
        self._decompose = decompose or matrix.svd
        self._computed: dict[int, tuple[Array, Array]] = {}

    def __iter__(self) -> Iterator[Any]:
        num_rows, num_columns = self.matrix.shape
        count = min(num_rows, num_columns)
        num_left = count
        num_right = count
        if self.full_matrices:
            num_left = num_rows
            num_right = num_columns
        yield _LeftVectors(self, num_left, (num_rows, num_left))
        yield _SingularValues(self, count, (count,))
        yield _RightVectors(self, num_right, (num_right, num_columns))

    def compute(self, rank: int) -> tuple[Array, Array]:
        """Return the leading left vectors and the values, computed once for each rank."""
        return self._svd(self.source, rank)

    @mirror
    def _svd(self, source: Any, rank: int) -> tuple[Array, Array]:
        """Compute the vectors and values; `mirror` brings them to the side of the source."""
        if rank not in self._computed:
            task = f"finding {rank} singular vectors of mode {self.matrix.mode}"
            self._computed[rank] = attempt(task, lambda: self._decompose(rank))
        return self._computed[rank]


class _SvdPart(LazyArray):
    """`count` singular vectors or values, of which there are slices."""

    _instead = "slice the leading singular vectors first, as tl.svd_interface does"

    def __init__(self, svd: LazySVD, count: int, shape: tuple[int, ...]) -> None:
        self._svd = svd
        self._count = count
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = svd.matrix.dtype

    def __repr__(self) -> str:
        return f"<{type(self).__name__[1:]} of {self._svd.matrix!r}>"

    def _count_leading(self, index: Any) -> int:
        """Return the number of items in ``[:n]``; refuse any other index."""
        if isinstance(index, slice) and index.start in (None, 0) and index.step in (None, 1):
            return range(self._count)[index].stop
        raise self._refuse(index)

    def _refuse(self, index: Any) -> Exception:
        return densify_error(f"indexing {self!r} with {index!r}", self.shape, self._instead)


class _LeftVectors(_SvdPart):
    """Left singular vectors: a slice is a fresh array, completed to a basis if needed."""

    def __getitem__(self, index: Any) -> Array:
        takes_all_rows = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
        if not takes_all_rows:
            raise self._refuse(index)
        num_columns = self._count_leading(index[1])
        num_vectors = min(num_columns, *self._svd.matrix.shape)
        leading, _ = self._svd.compute(num_vectors)
        num_rows, num_leading = leading.shape
        if num_columns == num_leading:
            return leading.copy()
        left = array_module(leading).zeros((num_rows, num_columns))
        left[:, :num_leading] = leading
        return complete_basis(left, num_leading).astype(leading.dtype)


class _SingularValues(_SvdPart):
    """Singular values: a slice is a fresh array."""

    def __getitem__(self, index: Any) -> Array:
        num_values = self._count_leading(index)
        _, values = self._svd.compute(num_values)
        return values.copy()


class _RightVectors(_SvdPart):
    """Right singular vectors without elements: they allow only slicing and sign flips."""

    _instead = (
        "the right singular vectors of an unfolding have a column for every cell; parafac2 takes "
        "sparse slices as they are, without compression"
    )

    def __getitem__(self, index: Any) -> _RightVectors:
        rows = index
        if isinstance(index, tuple) and len(index) == 2:
            rows, columns = index
            if columns not in (None, slice(None)):
                raise self._refuse(index)
        count = self._count_leading(rows)
        return _RightVectors(self._svd, count, (count, self.shape[1]))

    def __mul__(self, signs: Array) -> _RightVectors:
        return self
