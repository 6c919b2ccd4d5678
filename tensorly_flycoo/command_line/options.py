"""The options of the commands on data and models: here they are declared.

Commands that have an option have it from here, under one name. `fitting.py` refuses those that do
not go together (`check_options`), and chooses the loss and what a decomposition takes. The commands
act on those of their own, such as ``--output``; those of files and tensors act in `reading.py`, and
``--top`` and ``--lines`` in `writing.py`. Options that few need, or whose values are no single word
or number, such as the strengths of ``smoothness=`` by mode, are for Python alone.
"""

import argparse
from pathlib import Path

from ..base.value_dtypes import VALUE_DTYPES
from ..io.dataframe import AGGREGATES
from ..io.table_rows import MISSING
from ..loop.losses import EXACT_LOSSES

#: Random starts, of which the best run is kept.
NUM_STARTS = 5

#: The same for a rank that may be suggested.
NUM_STARTS_OF_RANK = 20


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "fit", in groups as ``--help`` shows them."""
    _add_data_options(parser)
    model = parser.add_argument_group("the model")
    model.add_argument("--rank", type=_count, required=True, help="the number of components")
    _add_model_options(model)
    model.add_argument(
        "--init", default="random", choices=("random", "svd"), help="the start (default: random)"
    )
    model.add_argument(
        "--starts", type=_count, help=f"random starts; the best is kept (default: {NUM_STARTS})"
    )
    model.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of one start; of several, draws their seeds (default: 0)",
    )
    results = parser.add_argument_group("the results")
    _add_output(results, "FOLDER", "the file's name and the rank")
    results.add_argument(
        "--top", type=_count, default=6, help="labels to show for each component (default: 6)"
    )
    results.add_argument(
        "--lines",
        type=_split,
        help="modes drawn as lines, not bars (default: numbers and dates)",
    )
    _add_quiet(results, "components")


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "rank"."""
    _add_data_options(parser)
    model = parser.add_argument_group("the models")
    model.add_argument(
        "--ranks",
        type=_ranks,
        default=range(1, 9),
        help="the numbers of components to try, such as 1-8 or 1,2,4-6 (default: 1-8)",
    )
    _add_model_options(model)
    model.add_argument(
        "--starts",
        type=_count,
        default=NUM_STARTS_OF_RANK,
        help=f"random starts of a rank that is suggested (default: {NUM_STARTS_OF_RANK})",
    )
    model.add_argument(
        "--seed",
        type=int,
        default=0,
        help="draws what is held out, and the seeds of the starts (default: 0)",
    )
    results = parser.add_argument_group("the results")
    _add_output(results, "FOLDER", 'the file\'s name and "ranks"')
    _add_quiet(results, "scores")


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "predict"."""
    _add_file_options(parser.add_argument_group("the file"))
    _add_table_options(parser, 'the file\'s name and "predictions.csv"')


def add_recommend_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "recommend"."""
    group = parser.add_argument_group("what to recommend")
    group.add_argument(
        "--mode",
        required=True,
        nargs="+",
        metavar=("MODE", "LABEL"),
        help="the mode to recommend to, such as user, and which of its labels (default: all)",
    )
    group.add_argument("--of", help="the mode to choose from (default: the first other one)")
    group.add_argument("-n", type=_count, default=10, help="labels for each (default: 10)")
    group.add_argument(
        "--exclude",
        type=Path,
        metavar="FILE",
        help="its rows are left out, such as those of the file that was decomposed",
    )
    _add_file_options(parser.add_argument_group("the file to exclude"))
    _add_table_options(parser, 'the mode and "recommendations.csv"')


def add_anomalies_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "anomalies"."""
    _add_options_beside_model(parser)
    _add_table_options(parser, 'the file\'s name and "anomalies.csv"')


def add_diagnose_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of "diagnose"."""
    _add_options_beside_model(parser)
    _add_table_options(parser, 'the file\'s name and "diagnosis.csv"')


def _add_options_beside_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of a file that becomes a tensor with the labels of a model."""
    group = parser.add_argument_group("the file")
    _add_value_options(group, "as when the model was made")
    _add_file_options(group)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a file that becomes a tensor."""
    group = parser.add_argument_group("the tensor")
    group.add_argument(
        "--modes",
        type=_split,
        help="columns, separated by commas, times rounded as in time:day; names for a .tns",
    )
    _add_value_options(group, "count rows")
    _add_file_options(group)
    group.add_argument("--dtype", default="float64", choices=tuple(VALUE_DTYPES))


def _add_value_options(group: argparse._ArgumentGroup, default: str) -> None:
    """Add the options of the values of a table."""
    group.add_argument(
        "--values", metavar="COLUMN", help=f"the column of values (default: {default})"
    )
    group.add_argument(
        "--aggregate",
        choices=AGGREGATES,
        help="of the values of rows of one cell (default: sum, with a warning)",
    )


def _add_file_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how to read a table."""
    group.add_argument(
        "--missing",
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


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of models that "fit" and "rank" make."""
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
        help="cells without a row are unknown, not zeros; some of the others are held out",
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
        "--device", choices=("auto", "cpu", "cuda"), help="(default: a GPU if there is one)"
    )


def _add_table_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of a command that writes one table."""
    group = parser.add_argument_group("the results")
    _add_output(group, "CSV", default)
    _add_quiet(group, "rows")


def _add_output(group: argparse._ArgumentGroup, metavar: str, default: str) -> None:
    group.add_argument(
        "--output",
        type=Path,
        metavar=metavar,
        help=f"where to write; files there are replaced (default: {default})",
    )


def _add_quiet(group: argparse._ArgumentGroup, results: str) -> None:
    text = f"print neither progress nor {results}"
    group.add_argument("--quiet", action="store_true", help=text)


def _ranks(text: str) -> list[int]:
    """Read ranks, as "1-8" or "1,2,4-6"."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            ranks += range(_count(first), _count(last or first) + 1)
        except argparse.ArgumentTypeError:
            ranks = []
            break
    if not ranks:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks like 1-8 or 1,2,4-6")
    return ranks


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
