"""The table of functions that accept a sparse tensor is correct and complete."""

import pytest
import supported_table
import tensorly as tl
from sparse_problems import densification_alarm

pytestmark = pytest.mark.skipif(
    not tl.__version__.startswith(supported_table.TENSORLY),
    reason=f"the table describes TensorLy {supported_table.TENSORLY}",
)

#: The first takes matrices, not a tensor; the second fails in TensorLy 0.10 even for dense tensors.
_LEFT_OUT = {"decomposition.sample_khatri_rao", "tenalg.higher_order_moment"}

_WRITE = "run python tests/support/supported_table.py to update docs/supported.md"


@pytest.fixture(autouse=True)
def backend(flycoo_backend):
    """Run all of these tests under "flycoo"."""


@pytest.fixture(scope="module")
def table():
    return (
        supported_table.PAGE.read_text()
        .split(supported_table.START)[1]
        .split(supported_table.END)[0]
    )


@pytest.mark.filterwarnings("ignore:Given only one int:RuntimeWarning")
@pytest.mark.parametrize("kind", supported_table.KINDS)
@pytest.mark.parametrize("number", range(len(supported_table.ROWS)))
def test_each_line_is_correct(number, kind, table):
    names, _ = supported_table.read_record()
    with densification_alarm(allow_refusals=True):
        line = supported_table.make_line(supported_table.ROWS[number], names, kind)
    assert table.splitlines()[2 + number] == line, _WRITE


def test_the_header_and_the_note_are_correct(table):
    start, end = supported_table.make_frame()
    lines = table.splitlines()
    assert lines[:2] == start, _WRITE
    assert lines[2 + len(supported_table.ROWS) :] == end, _WRITE


@pytest.mark.parametrize("module", supported_table.MODULES)
def test_every_public_name_is_listed(module):
    names = supported_table.list_public(module)
    assert names
    assert names - _LEFT_OUT <= {name for row in supported_table.ROWS for name in row.uses}


def test_the_gpu_record_has_only_listed_names():
    names, _ = supported_table.read_record()
    assert set(names) <= {name for row in supported_table.ROWS for name in row.uses}
    assert set(names.values()) <= {"yes", "no", "fails", "fails or no", "fails or yes", "no or yes"}


def test_a_limit_that_works_is_an_error():
    row = supported_table.Row({"norm": lambda f, x: f(x)}, {"never": lambda f, x: f(x)})
    with pytest.raises(AssertionError, match="norm of a COO works, which the limit 'never' denies"):
        supported_table.make_line(row, {})


def test_other_exceptions_do_not_count_as_refusals():
    with pytest.raises(ZeroDivisionError):
        supported_table.make_line(supported_table.Row({"norm": lambda f, x: 1 / 0}), {})


def test_the_gpu_column_shows_the_record():
    row = supported_table.Row({"norm": lambda f, x: f(x), "sum": lambda f, x: f(x)})
    lines = [
        supported_table.make_line(row, record) for record in ({}, {"norm": "yes", "sum": "fails"})
    ]
    assert lines == [f"| `norm`, `sum` | yes | {gpu} |  |" for gpu in ("not run", "fails or yes")]
