"""The command "fit": a CP model of a file, written as tables and a picture."""

import argparse
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorly as tl

from ..decomposition import generalized_parafac, non_negative_parafac_hals, parafac
from ..decomposition.labelled_cp import LabelledCP
from ..diagnostics.progress import Progress
from ..engines import set_device
from ..tensor.labelled import LabelledTensor
from .reading import SUFFIXES, find_suffix, read_tensor
from .results import describe, write_results


class Loss(NamedTuple):
    """A loss that `fit` can minimise.

    Attributes
    ----------
    text : str
        When to choose it, for --help.
    solver : callable
        Takes a tensor, a rank and the options of `parafac`, and returns a CP model.
    non_negative_solver : callable
    describe : callable
        Says how good a model is, from its error.
    """

    text: str
    solver: Callable[..., Any]
    non_negative_solver: Callable[..., Any]
    describe: Callable[[float], str] = lambda error: f"fit {1 - error:.4f}"


_fit_counts = functools.partial(generalized_parafac, loss="poisson_count")

LOSSES = {
    "gaussian": Loss("the squared error, for any values", parafac, non_negative_parafac_hals),
    "poisson": Loss(
        "the likelihood of counts, with a non-negative model", _fit_counts, _fit_counts,
        lambda error: f"loss {error:.6g}",
    ),
}  # fmt: skip

_DESCRIPTION = """Decompose a file of events into RANK components.

A component is a pattern: some users who bought some items on some days. Each column in
--modes becomes a mode of a sparse tensor. Each row of the file adds to one cell: 1, or its
entry in the column --values. Cells without a row are zeros.
"""
_EPILOG = """what you get, in the folder --output:
  components.png     a row of panels for each component: bars for names, lines for
                     numbers and dates
  mode0_user.csv...  for each mode, a row for each label and a column for each component
  weights.csv        how large each component is; the columns above have norm 1
  model.npz          all of it for Python: tensorly_flycoo.LabelledCP.load(path)

examples:
  python -m tensorly_flycoo fit events.parquet --modes user,item,day --rank 8
  python -m tensorly_flycoo fit events.parquet --modes user,item,day --rank 8 --loss poisson
  python -m tensorly_flycoo fit ratings.csv --modes user,film --values stars \\
      --aggregate mean --rank 5
  python -m tensorly_flycoo fit events.csv --modes user,item --rank 4 --non-negative
  python -m tensorly_flycoo fit nell-2.tns.gz --rank 16 --output nell

how to go on:
  Are the values counts? --loss poisson fits them better than squared errors do.
  Is a component hard to read? --non-negative leaves out minus signs, which cancel in pairs.
  Which rank? Try several, or tensorly_flycoo.select_rank in Python.
  Can you trust it? Another --seed with --init random should find the same components; if
  not, choose a smaller rank.
  Ctrl-C ends the run after the current iteration and writes the results so far.

needs: pip install "tensorly-flycoo[tables]", or ".[tables]" in a checkout
"""


def add_parser(commands: Any) -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "fit",
        help="decompose a file of events into named components",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda arguments: run(arguments, parser))
    parser.add_argument("file", type=Path, help=f"a table or tensor: {', '.join(SUFFIXES)}")
    _add_tensor_arguments(parser.add_argument_group("the tensor").add_argument)
    _add_model_arguments(parser.add_argument_group("the model").add_argument)
    _add_result_arguments(parser.add_argument_group("the results").add_argument)


def _add_tensor_arguments(add: Callable[..., Any]) -> None:
    add("--modes", type=_split, help="columns, separated by commas; for a .tns, names of its modes")
    add("--values", metavar="COLUMN", help="the column of values (default: count rows)")
    add(
        "--aggregate",
        default="sum",
        choices=("sum", "mean", "last", "max", "count"),
        help="how to merge rows of one cell (default: sum)",
    )
    add(
        "--missing",
        default="raise",
        choices=("raise", "drop"),
        help="rows with empty entries are an error, or are left out (default: raise)",
    )
    add("--dtype", default="float64", choices=("float32", "float64"))


def _add_model_arguments(add: Callable[..., Any]) -> None:
    add("--rank", type=_count, required=True, help="the number of components")
    text = "; ".join(f"{name}: {loss.text}" for name, loss in LOSSES.items())
    add(
        "--loss",
        default="gaussian",
        choices=LOSSES,
        help=f"what to fit by ({text}; default: gaussian)",
    )
    add("--non-negative", action="store_true", help="allow no negative element in the model")
    add("--iterations", type=_count, default=100, help="the most to do (default: 100)")
    add(
        "--tol",
        type=float,
        default=1e-6,
        help="stop when an iteration improves the error by less (default: 1e-6)",
    )
    add("--init", default="svd", choices=("svd", "random"), help="the start (default: svd)")
    add("--seed", type=int, default=0, help="of a random start (default: 0)")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where to compute (default: on a GPU if there is one)",
    )


def _add_result_arguments(add: Callable[..., Any]) -> None:
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where to write; files there are replaced (default: the file's name and the rank)",
    )
    add("--top", type=_count, default=6, help="labels to show for each component (default: 6)")
    add("--lines", type=_split, help="modes drawn as lines, not bars (default: numbers and dates)")
    add("--quiet", action="store_true", help="print neither progress nor components")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Read the file, decompose it, and write the results."""
    suffix = find_suffix(arguments.file)
    if suffix is None:
        parser.error(f"{arguments.file} is not one of {', '.join(SUFFIXES)}")
    if not arguments.modes and not suffix.startswith(".tns"):
        parser.error("--modes is missing: which columns, such as --modes user,item,day")
    folder = arguments.output or Path(
        f"{arguments.file.name.removesuffix(suffix)}_rank{arguments.rank}"
    )
    device = set_device(arguments.device) if arguments.device else contextlib.nullcontext()
    with device, tl.backend_context("flycoo"):
        x = read_tensor(arguments, suffix)
        _check_lines(arguments.lines, x)
        if not arguments.quiet:
            print(f"{arguments.file}: {x!r}", flush=True)
        cp, progress = _decompose(x, arguments)
    quality = LOSSES[arguments.loss].describe(progress.errors[-1])
    print(f"{quality} after {progress.iteration} iterations")
    if not arguments.quiet:
        print(describe(cp, arguments.top))
    for path in write_results(cp, folder, arguments):
        print(f"wrote {path}")


def _decompose(x: LabelledTensor, arguments: argparse.Namespace) -> tuple[LabelledCP, Progress]:
    loss = LOSSES[arguments.loss]
    solver = loss.non_negative_solver if arguments.non_negative else loss.solver
    with Progress(
        arguments.iterations, show=_choose_show(arguments.quiet), log_every=10
    ) as progress:
        cp = solver(
            x,
            arguments.rank,
            n_iter_max=arguments.iterations,
            init=arguments.init,
            tol=arguments.tol,
            random_state=arguments.seed,
            callback=progress,
        )
    return cp, progress


def _choose_show(is_quiet: bool) -> str | None:
    if is_quiet:
        return None
    has_bar = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
    return "bar" if has_bar else "log"


def _check_lines(lines: list[str] | None, x: LabelledTensor) -> None:
    for mode in lines or ():
        if mode not in x.labels:
            raise ValueError(f"--lines has {mode!r}, expected some of {', '.join(x.labels)}")


def _split(text: str) -> list[str]:
    names = text.split(",")
    if "" in names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of distinct names like user,item")
    return names


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return number
