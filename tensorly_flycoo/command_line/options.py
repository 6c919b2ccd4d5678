"""The options of the command "fit": here they are declared.

`fit.py` refuses those that do not go together (`_check_options`), and acts on those of the whole
command, such as ``--loss`` and ``--output``. Those of the tensor act in `reading.py`, those of the
runs in `fitting.py` (`decompose` passes on what a decomposition takes), and ``--top`` and
``--lines`` in `writing.py`. Options that few need, or whose values are no single word or number,
such as the strengths of ``smoothness=`` by mode, are for Python alone.
"""

import argparse
from pathlib import Path

from ..base.value_dtypes import VALUE_DTYPES
from ..io.dataframe import AGGREGATES, MISSING
from ..loop.losses import EXACT_LOSSES

#: Random starts, of which the best run is kept.
NUM_STARTS = 5


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "fit", in groups as ``--help`` shows them."""
    _add_tensor_options(parser.add_argument_group("the tensor"))
    _add_model_options(parser.add_argument_group("the model"))
    _add_result_options(parser.add_argument_group("the results"))


def _add_tensor_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--modes",
        type=_split,
        help="columns, separated by commas, times rounded as in time:day; names for a .tns",
    )
    group.add_argument(
        "--values", metavar="COLUMN", help="the column of values (default: count rows)"
    )
    group.add_argument(
        "--aggregate",
        choices=AGGREGATES,
        help="of the values of rows of one cell (default: sum, with a warning)",
    )
    group.add_argument(
        "--missing",
        default="raise",
        choices=MISSING,
        help="rows with empty entries are an error, or are left out (default: raise)",
    )
    group.add_argument(
        "--missing-text",
        type=_split,
        default=[],
        metavar="TEXTS",
        help="texts, separated by commas, that mean an empty entry too, such as NA,null",
    )
    group.add_argument(
        "--sep",
        type=_separator,
        help="the character that separates the columns (default: a comma; a tab in .tsv)",
    )
    group.add_argument(
        "--no-header",
        action="store_true",
        help="the first line of the text file is a row; the columns are called 1, 2, ...",
    )
    group.add_argument("--dtype", default="float64", choices=tuple(VALUE_DTYPES))


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--rank", type=_count, required=True, help="the number of components")
    group.add_argument(
        "--loss",
        choices=EXACT_LOSSES,
        help="gaussian: squared errors; poisson_count: the likelihood of counts, with a "
        "non-negative model (default: poisson_count if rows are counted, else gaussian)",
    )
    group.add_argument(
        "--non-negative", action="store_true", help="allow no negative element in the model"
    )
    group.add_argument(
        "--observed",
        action="store_true",
        help="cells without a row are unknown, not zeros; a tenth of the others is held out",
    )
    group.add_argument(
        "--biases", action="store_true", help="with --observed: a mean, and a bias of each label"
    )
    group.add_argument(
        "--l2-reg",
        type=float,
        metavar="RIDGE",
        help="with --observed: the ridge (default: the best for the held-out entries)",
    )
    group.add_argument(
        "--iterations", type=_count, default=100, help="the most to do (default: 100)"
    )
    group.add_argument(
        "--tol",
        type=float,
        help="stop when the relative error changes by less, or a loss decreases by less than this "
        "part of it (default: 1e-8; 1e-6 with --observed, and of a loss)",
    )
    group.add_argument(
        "--init", default="random", choices=("random", "svd"), help="the start (default: random)"
    )
    group.add_argument(
        "--starts", type=_count, help=f"random starts; the best is kept (default: {NUM_STARTS})"
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of one start; of several, draws their seeds (default: 0)",
    )
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="(default: a GPU if there is one)"
    )


def _add_result_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where to write; files there are replaced (default: the file's name and the rank)",
    )
    group.add_argument(
        "--top", type=_count, default=6, help="labels to show for each component (default: 6)"
    )
    group.add_argument(
        "--lines",
        type=_split,
        help="modes drawn as lines, not bars (default: numbers and dates)",
    )
    group.add_argument("--quiet", action="store_true", help="print neither progress nor components")


def _split(text: str) -> list[str]:
    names = text.split(",")
    if "" in names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of distinct names like user,item")
    return names


def _separator(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in '"\r\n':
        hint = "replace longer ones in the file, as with sed 's/::/;/g'"
        raise argparse.ArgumentTypeError(f"{text!r} is not a single character like ';': {hint}")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)
