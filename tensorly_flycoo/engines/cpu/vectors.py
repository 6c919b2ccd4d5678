"""Vectors of numbers in registers, for loops over rows that stay in a cache.

LLVM's vectoriser first asks at run time whether the arrays of a loop overlap, which takes longer
than short loops themselves, and it leaves sums of floating-point numbers scalar. A `Vector` is an
LLVM vector in numba's compiled functions: ``+ - * /`` work on all its lanes, each of
which has the bits of single numbers.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import lower_builtin, register_model, type_callable

from .mttkrp import make_vector_type, multiply_add, splat, vector_pointer
from .records import intrinsic

#: Bytes of a vector that the registers of most processors hold a few of.
VECTOR_NBYTES = 64


class Vector(types.Type):
    """The type of a vector, for numba."""

    def __init__(self, dtype: Any, num_lanes: int) -> None:
        self.dtype = dtype
        self.num_lanes = num_lanes
        super().__init__(f"Vector({dtype}, {num_lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, models_of_types: Any, vector: Vector) -> None:
        number = models_of_types.lookup(vector.dtype).get_value_type()
        super().__init__(models_of_types, vector, ir.VectorType(number, vector.num_lanes))


def _define_operator(function: Callable[[Any, Any], Any], instruction: str) -> None:
    """Let numba compile an operator between two vectors to an instruction of LLVM."""

    def find_type(context: Any) -> Any:
        def find_type_of(a: Any, b: Any) -> Any:
            return a if isinstance(a, Vector) and a == b else None

        return find_type_of

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)

    type_callable(function)(find_type)
    lower_builtin(function, Vector, Vector)(generate)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@intrinsic
def spread(typing_context: Any, number: Any, lanes: Any) -> Any:
    """Fill ``len(lanes)`` lanes with a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[0], make_vector_type(context, number, lanes))

    return Vector(number, lanes.count)(number, lanes), generate


@intrinsic
def load(typing_context: Any, matrix: Any, row: Any, column: Any, lanes: Any) -> Any:
    """Read ``matrix[row, column : column + len(lanes)]`` of a C-contiguous matrix."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        matrix_, row_, column_, _ = args
        place = vector_pointer(context, builder, matrix, matrix_, row_, column_, lanes)
        return builder.load(place, align=matrix.dtype.bitwidth // 8)

    return Vector(matrix.dtype, lanes.count)(matrix, row, column, lanes), generate


@intrinsic
def store(typing_context: Any, vector: Any, matrix: Any, row: Any, column: Any) -> Any:
    """Write a vector to ``matrix[row, column : column + num_lanes]``."""
    lanes = types.UniTuple(types.int64, vector.num_lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_, matrix_, row_, column_ = args
        place = vector_pointer(context, builder, matrix, matrix_, row_, column_, lanes)
        builder.store(vector_, place, align=matrix.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(vector, matrix, row, column), generate


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of vectors, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return multiply_add(builder, *args)

    return c(a, b, c), generate


def _define_choice(comparison: str) -> Any:
    @intrinsic
    def choose(typing_context: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a_, b_, x_, y_ = args
            return builder.select(compare(builder, a_, b_), x_, y_)

        return x(a, b, x, y), generate

    def compare(builder: Any, a: Any, b: Any) -> Any:
        # "unordered": nan differs from all numbers, also from itself.
        if comparison == "!=":
            return builder.fcmp_unordered(comparison, a, b)
        return builder.fcmp_ordered(comparison, a, b)

    return choose


#: ``x if a < b else y`` and ``x if a != b else y``, in each lane.
where_less = _define_choice("<")
where_different = _define_choice("!=")


def call_for_vector(builder: Any, name: str, numbers: Any) -> Any:
    """Call LLVM's function of that name for each lane."""
    kind = ir.FunctionType(numbers.type, [numbers.type])
    full_name = f"llvm.{name}.v{numbers.type.count}{numbers.type.element.intrinsic_name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, full_name), [numbers])


@intrinsic
def larger_magnitude(typing_context: Any, largest: Any, vector: Any) -> Any:
    """Return the larger of a magnitude and that of another number, in each lane; nan is largest."""
    word = ir.IntType(vector.dtype.bitwidth)
    words = ir.VectorType(word, vector.num_lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Bits of magnitudes ascend as these do; those of nan are above all others.
        magnitude = call_for_vector(builder, "fabs", args[1])
        before, bits = [builder.bitcast(numbers, words) for numbers in (args[0], magnitude)]
        is_larger = builder.icmp_unsigned(">", bits, before)
        return builder.select(is_larger, magnitude, args[0])

    return vector(largest, vector), generate


@intrinsic
def add_lanes(typing_context: Any, vector: Any) -> Any:
    """Add up all lanes: one half to the other, until one is left."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (sums,) = args
        int32 = ir.IntType(32)
        count = vector.num_lanes
        while count > 1:
            count //= 2
            vector_type = ir.VectorType(int32, count)
            low = ir.Constant(vector_type, list(range(count)))
            high = ir.Constant(vector_type, list(range(count, 2 * count)))
            undefined = ir.Constant(sums.type, ir.Undefined)
            halves = [builder.shuffle_vector(sums, undefined, places) for places in (low, high)]
            sums = builder.fadd(*halves)
        return builder.extract_element(sums, int32(0))

    return vector.dtype(vector), generate


@intrinsic
def multiply_block(
    typing_context: Any,
    left: Any,
    first: Any,
    right: Any,
    column: Any,
    terms: Any,
    product: Any,
    target: Any,
    block: Any,
    lanes: Any,
) -> Any:
    """Compute ``len(block)`` rows and ``len(lanes)`` columns of ``left @ right``.

    They are those from `first` and `column` on, and are written to the rows of `product` from
    `target` on. Only the terms ``terms[0]`` to ``terms[1] - 1`` of each sum are added up. The sums
    stay in registers, in the dtype of `right`. `left`, which may be the transpose of a C-contiguous
    matrix, and `product` may be narrower.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left_, first_, right_, column_, terms_, product_, target_, _, _ = args
        vector_type = make_vector_type(context, right.dtype, lanes)
        zeros = ir.Constant(vector_type, None)
        totals = [cgutils.alloca_once(builder, vector_type) for _ in range(block.count)]
        for total in totals:
            builder.store(zeros, total)
        left_array = context.make_array(left)(context, builder, left_)
        num_left_rows, num_left_columns = cgutils.unpack_tuple(builder, left_array.shape)
        # How far apart the numbers of two rows are, and those of two terms.
        row_step, term_step = num_left_columns, num_left_columns.type(1)
        if left.layout == "F":
            row_step, term_step = num_left_rows.type(1), num_left_rows
        rows = [builder.add(first_, first_.type(i)) for i in range(block.count)]
        starts = [builder.gep(left_array.data, [builder.mul(row, row_step)]) for row in rows]
        first_term, end = cgutils.unpack_tuple(builder, terms_)
        num_terms = builder.sub(end, first_term)
        with cgutils.for_range(builder, num_terms) as loop:
            term = builder.add(first_term, loop.index)
            place = vector_pointer(context, builder, right, right_, term, column_, lanes)
            vector = builder.load(place, align=right.dtype.bitwidth // 8)
            offset = builder.mul(term, term_step)
            for start, total in zip(starts, totals, strict=True):
                number = builder.load(builder.gep(start, [offset]))
                if left.dtype != right.dtype:
                    number = builder.fpext(number, vector_type.element)
                numbers = splat(builder, number, vector_type)
                added = multiply_add(builder, numbers, vector, builder.load(total))
                builder.store(added, total)
        stored_type = make_vector_type(context, product.dtype, lanes)
        for i, total in enumerate(totals):
            numbers = builder.load(total)
            if stored_type != vector_type:
                numbers = builder.fptrunc(numbers, stored_type)
            row = builder.add(target_, target_.type(i))
            place = vector_pointer(context, builder, product, product_, row, column_, lanes)
            builder.store(numbers, place, align=product.dtype.bitwidth // 8)
        return context.get_dummy_value()

    signature = types.void(left, first, right, column, terms, product, target, block, lanes)
    return signature, generate
