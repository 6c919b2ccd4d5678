"""Structures that Python fills: a kernel compiles only if both sides have the same layout."""

import re
import struct

import numpy as np
import pytest
from cuda_sources import ON_LINUX, compile_source, make_format
from test_kernels import specialise_all

from tensorly_flycoo.engines.cuda import structs, tuning
from tensorly_flycoo.engines.cuda.macros import IdBits, mttkrp_macros, ttmc_macros

H200 = tuning.Gpu((9, 0), 228 * 1024)
U32 = np.dtype(np.uint32)
IDS = (U32, IdBits(U32))


def specialise(file, ndim, dtype):
    """Return the macros of one specialisation of a kernel."""
    record_format, occupancy = make_format(ndim, dtype), tuning.choose_occupancy(H200, ndim - 1)
    if file not in ("mttkrp_remap.cu", "ttmc.cu"):
        return specialise_all()[file]
    if file == "ttmc.cu":
        return ttmc_macros(record_format, 256, tuning.cut_columns(9, ndim - 1), occupancy, *IDS)
    cut = tuning.cut_rank(25, record_format.dtype.itemsize, 16, 16)
    return mttkrp_macros(record_format, 256, cut, occupancy, *IDS)


LAYOUTS = [
    ("mttkrp_remap.cu", "FIELD_LAYOUT"),
    ("mttkrp_remap.cu", "OPERANDS_LAYOUT"),
    ("mttkrp_remap.cu", "ROW_BLOCKS_LAYOUT"),
    ("mttkrp_remap.cu", "LAUNCH_ARGUMENTS_LAYOUT"),
    ("ttmc.cu", "FIELD_LAYOUT"),
    ("ttmc.cu", "OPERANDS_LAYOUT"),
    ("ttmc.cu", "RANKS_LAYOUT"),
    ("pack.cu", "PACKING_LAYOUT"),
    ("read_keys.cu", "KEY_FIELDS_LAYOUT"),
    ("split_columns.cu", "COLUMNS_LAYOUT"),
    ("narrow_rows.cu", "NARROW_COPY_LAYOUT"),
    ("products.cu", "PRODUCT_LAYOUT"),
    ("add_measures.cu", "STEP_MEASURES_LAYOUT"),
    ("step_rows.cu", "ROW_UPDATE_LAYOUT"),
    ("sweep_rows.cu", "ROW_UPDATE_LAYOUT"),
    ("wide_rows.cu", "ROW_UPDATE_LAYOUT"),
]

#: Kernels with the layout of another one, which compile for seconds.
SLOW_FILES = ("sweep_rows.cu", "wide_rows.cu")


@ON_LINUX
@pytest.mark.parametrize(
    ("file", "layout"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] in SLOW_FILES)) for pair in LAYOUTS],
)
def test_a_structure_that_differs_does_not_compile(file, layout):
    """Every number and name of the layout is compared."""
    macros = specialise(file, 3, "float32")
    text = structs.layout_macro(macros[layout])
    numbers = list(re.finditer(r"\b\d+", text))
    assert len(numbers) == 1 + 2 * text.count("MEMBER")
    for number in numbers:
        other = f"{text[: number.start()]}{int(number[0]) + 4}{text[number.end() :]}"
        with pytest.raises(AssertionError, match=r"structs\.py: "):
            compile_source(file, "sm_90", {**macros, layout: other})
    for name in re.findall(r"MEMBER\((\w+)", text):
        other = text.replace(f"MEMBER({name},", f"MEMBER({name}_too,")
        with pytest.raises(AssertionError, match=f"{name}_too"):
            compile_source(file, "sm_90", {**macros, layout: other})


@ON_LINUX
@pytest.mark.parametrize(
    ("file", "macro", "name"),
    [
        ("mttkrp_remap.cu", "SLOT_NBYTES", "slots"),
        ("mttkrp_remap.cu", "CARRIES_NBYTES", "carries"),
        ("ttmc.cu", "SLOT_NBYTES", "slots"),
    ],
)
def test_shared_memory_of_another_size_does_not_compile(file, macro, name):
    macros = specialise(file, 3, "float32")
    with pytest.raises(AssertionError, match=rf"structs\.py: size of {name} differs"):
        compile_source(file, "sm_90", {**macros, macro: macros[macro] + 8})


def test_every_structure_is_checked():
    """Every structure of `structs` has a dtype and a layout among the macros."""
    makers = {name for name in vars(structs) if name.startswith("make_")}
    dtypes = {name for name in vars(structs) if name.endswith("_dtype")}
    assert {name.replace("make_", "") + "_dtype" for name in makers} == dtypes
    layouts = {layout.replace("_LAYOUT", "").lower() for _, layout in LAYOUTS}
    constants = {"field", "narrow_copy", "product", "row_update", "step_measures"}
    assert {name.removesuffix("_dtype") for name in dtypes} | constants == layouts


class Factor:
    """A stand-in for a matrix on a GPU."""

    def __init__(self, shape, dtype, address):
        array = np.empty(shape, dtype)
        self.shape, self.strides, self.itemsize = shape, array.strides, array.itemsize
        self.data = type("Memory", (), {"ptr": address})()


def test_operands():
    record_format = make_format(3, "float64", bits=20)
    factors = [Factor((5, 4), "float64", 2**40), Factor((1, 4), "float64", 2**41)]
    made = structs.make_operands(record_format, 1, [0, 2], factors)
    operands = made.view(structs.operands_dtype(2))
    fields = list(zip(record_format.words, record_format.shifts, record_format.masks, strict=True))
    assert operands["out_field"].item() == fields[1]
    assert operands["input_fields"].tolist() == [fields[0], fields[2]]
    assert operands["value_slot"] == record_format.value_slot
    assert operands["factors"].tolist() == [2**40, 2**41]
    assert operands["row_nbytes"].tolist() == [32, 32]
    assert operands["last_out_row"] == 2**20 - 1
    assert operands["last_input_rows"].tolist() == [2**20 - 1] * 2


@pytest.mark.parametrize("ndim", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_launch_arguments(ndim, dtype):
    """Their attributes are the members of the structure, with all operands but the factors."""
    record_format, mode = make_format(ndim, dtype, bits=20), ndim // 2
    inputs = [n for n in range(ndim) if n != mode]
    arguments = structs.make_launch_arguments(record_format, mode, inputs)
    as_dtype = structs.launch_arguments_dtype(len(inputs), record_format.dtype)
    plain = [name for name in as_dtype.names if name not in ("operands", "out")]
    for number, name in enumerate(plain):
        setattr(arguments, name, number)
    row_blocks = structs.make_row_blocks([Factor((5, 4), dtype, 2**42)])
    arguments.out = type(arguments.out).from_buffer_copy(row_blocks)
    factors = [Factor((n + 2, 4), dtype, 2**40 + n) for n in inputs]
    arguments.operands.factors[: len(factors)] = [factor.data.ptr for factor in factors]
    arguments.operands.row_nbytes[: len(factors)] = [structs.row_pitch(f) for f in factors]
    made = np.frombuffer(bytes(arguments), as_dtype)[0]
    operands = structs.make_operands(record_format, mode, inputs, factors)
    assert made["operands"].tobytes() == operands.tobytes()
    assert [made[name] for name in plain] == [*range(len(plain))]
    assert made["out"]["blocks"].tolist() == [2**42]
    assert made["out"]["block_rows"] == 5


def test_row_blocks():
    """Of two GPUs, the second with fewer rows."""
    blocks = [Factor((5, 4), "float32", 2**42), Factor((3, 4), "float32", 2**43)]
    (made,) = np.frombuffer(structs.make_row_blocks(blocks), structs.row_blocks_dtype(2))
    assert made["blocks"].tolist() == [2**42, 2**43]
    assert made["block_rows"] == 5


def test_the_members_of_a_product():
    """`tall` packs them in this order, all of 8 bytes but the last two."""
    assert structs.PRODUCT.itemsize == struct.calcsize("16Q12Q2i")
    assert [structs.PRODUCT[n] for n in range(5)] == [
        *[(np.dtype(kind), (structs.MAX_GRAMS,)) for kind in ("uint64", "int64")],
        *[(np.dtype(kind), (structs.MAX_MATRICES,)) for kind in ("uint64", "int64", "int64")],
    ]


def test_the_members_of_an_update_of_rows():
    """`row_updates` packs them in this order."""
    kinds = [*"Q" * 9, *"q" * 4, *"d" * 4, *"i" * 4, "Q", f"{tuning.MAX_ROW_STEPS}d", "Q"]
    check_members(structs.ROW_UPDATE, kinds)


def test_the_members_of_the_measures_of_steps():
    check_members(structs.STEP_MEASURES, "Q" * 4 + "d" + "i" * 2)


def check_members(dtype, kinds):
    assert [dtype[n] for n in range(len(dtype))] == [np.dtype(kind) for kind in kinds]
    assert dtype.itemsize == struct.calcsize("".join(kinds))


def test_the_members_of_a_narrow_copy():
    """`narrow_rows` packs them in this order."""
    check_members(structs.NARROW_COPY, "Q" * 4 + "q" * 3 + "i" * 2)


def test_ranks():
    factors = [Factor((5, 4), "float64", 0), Factor((6, 7), "float64", 0)]
    assert structs.make_ranks(factors).view(structs.ranks_dtype(2))["at"].tolist() == [4, 7]
    assert structs.make_ranks([]).view(structs.ranks_dtype(0))["at"].tolist() == [0]


def test_packing():
    record_format = make_format(3, "float32", bits=20)
    coords = np.zeros((7, 3), np.int16).T
    packing = structs.make_packing(record_format, coords).view(structs.packing_dtype(3))
    assert (packing["mode_stride"], packing["nonzero_stride"]) == (1, 3)
    assert packing["sizes"].tolist() == [2**20] * 3
    assert packing["words"].tolist() == list(record_format.words)
    assert packing["shifts"].tolist() == list(record_format.shifts)
    assert packing["value_slot"] == record_format.value_slot


@pytest.mark.parametrize("shape", [(5, 3), (1, 3)])
def test_the_pitch_of_rows(shape):
    array = np.zeros((shape[0], 8))[:, :3]
    assert structs.row_pitch(array) == (64 if shape[0] > 1 else 24)
