"""The command "fit": a CP model of a file, printed, and written as tables and a picture."""

import argparse
import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
import tensorly as tl

from ..decomposition import generalized_parafac, non_negative_parafac_hals, parafac
from ..decomposition.labelled_cp import LabelledCP
from ..diagnostics.progress import Progress
from ..engines import set_device
from ..io.files import replace_text, try_writing
from ..models.best_of import Starts
from ..models.match import factor_match_score
from ..reporting import report
from ..tensor.labelled import LabelledTensor
from .reading import SUFFIXES, find_suffix, read_tensor


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
    describe: Callable[[float], str] = lambda error: f"fit {1 - error:.4g}"


#: By the names that `generalized_parafac` gives them.
LOSSES = {
    "gaussian": Loss("the squared error, for any values", parafac, non_negative_parafac_hals),
    "poisson_count": Loss(
        "the likelihood of counts, with a non-negative model", generalized_parafac,
        generalized_parafac, lambda error: f"loss {error:.6g}",
    ),
}  # fmt: skip

#: Random starts, of which the best run is kept.
_NUM_STARTS = 5

#: The longest part of a file's name that a mode gives; systems allow about 250 bytes.
_MAX_NAME_LENGTH = 50

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
  python -m tensorly_flycoo fit events.parquet --modes user,item,time:day --rank 8
  python -m tensorly_flycoo fit ratings.csv --modes user,film --values stars \\
      --aggregate mean --rank 5
  python -m tensorly_flycoo fit events.csv --modes user,item --rank 4 --non-negative
  python -m tensorly_flycoo fit nell-2.tns.gz --rank 16 --output nell

how to go on:
  Are the --values counts? --loss poisson_count fits them better than squared errors do.
  Is a component hard to read? --non-negative leaves out minus signs, which cancel in pairs.
  Which rank? Try several, or tensorly_flycoo.select_rank in Python.
  Can you trust it? If the starts do not match, choose a smaller rank.
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
    add(
        "--modes",
        type=_split,
        help="columns, separated by commas, times rounded as in time:day; for a .tns, names of its "
        "modes",
    )
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
    add("--sep", help="what separates the columns (default: a comma; a tab in .tsv)")
    add("--dtype", default="float64", choices=("float32", "float64"))


def _add_model_arguments(add: Callable[..., Any]) -> None:
    add("--rank", type=_count, required=True, help="the number of components")
    text = "; ".join(f"{name}: {loss.text}" for name, loss in LOSSES.items())
    add(
        "--loss",
        choices=LOSSES,
        help=f"what to fit by ({text}; default: poisson_count if rows are counted, else gaussian)",
    )
    add("--non-negative", action="store_true", help="allow no negative element in the model")
    add("--iterations", type=_count, default=100, help="the most to do (default: 100)")
    add(
        "--tol",
        type=float,
        default=1e-6,
        help="stop when an iteration improves the fit or loss by less than this part of it "
        "(default: 1e-6)",
    )
    add("--init", default="random", choices=("random", "svd"), help="the start (default: random)")
    add(
        "--starts",
        type=_count,
        help=f"random starts, of which the best is kept (default: {_NUM_STARTS})",
    )
    add("--seed", type=int, default=0, help="of the first start; the next adds 1 (default: 0)")
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
    is_table = not suffix.startswith(".tns")
    if not arguments.modes and is_table:
        parser.error("--modes is missing: which columns, such as --modes user,item,day")
    if arguments.init == "svd" and (arguments.starts or 1) > 1:
        parser.error("--init svd is one start, the same each time: leave out --starts")
    are_counts = is_table and (arguments.values is None or arguments.aggregate == "count")
    arguments.loss = arguments.loss or ("poisson_count" if are_counts else "gaussian")
    folder = arguments.output or Path(
        f"{arguments.file.name.removesuffix(suffix)}_rank{arguments.rank}"
    )
    device = set_device(arguments.device) if arguments.device else contextlib.nullcontext()
    with device, tl.backend_context("flycoo"):
        try_folder(folder)
        x = read_tensor(arguments, suffix)
        _check_lines(arguments.lines, x)
        if not arguments.quiet:
            print(f"{arguments.file}: {x!r}, loss {arguments.loss}", flush=True)
        starts = _decompose(x, arguments)
    errors, cp = starts.errors[starts.best_number], starts.best
    quality, num_starts = LOSSES[arguments.loss].describe(errors[-1]), len(starts.runs)
    print(f"{quality} after {len(errors) - 1} iterations")
    if num_starts > 1:
        print(
            f"the best of {num_starts} starts, with --seed {starts.seeds[starts.best_number]}; the "
            f"others match it by {starts.match:.2f} (1: the same components)"
        )
    num_zero = int((cp.weights == 0).sum())
    advice = "try --init random, another --seed or a smaller --rank"
    if num_zero == arguments.rank:
        raise ValueError(f"the model is zero, and nothing is written: {advice}")
    if num_zero:
        print(f"warning: {num_zero} of {arguments.rank} components are zero: {advice}")
    if not arguments.quiet:
        print(describe(cp, arguments.top))
    for path in write_results(cp, folder, arguments):
        print(f"wrote {path}")


class _Run(Progress):
    """Progress that also ends the run once a fit, however small, hardly improves."""

    tol = 0.0
    is_interrupted = False

    def __call__(self, model: Any, error: SupportsFloat = np.nan) -> bool:
        self.is_interrupted = super().__call__(model, error)
        if self.is_interrupted or not self.tol or len(self.errors) < 3:
            return self.is_interrupted
        return self.errors[-2] - self.errors[-1] < self.tol * (1 - self.errors[-1])


def _decompose(x: LabelledTensor, arguments: argparse.Namespace) -> Starts:
    """Run all starts, or until Ctrl-C those so far."""
    loss = LOSSES[arguments.loss]
    solver = loss.non_negative_solver if arguments.non_negative else loss.solver
    is_gaussian = arguments.loss == "gaussian"
    num_starts = arguments.starts or (_NUM_STARTS if arguments.init == "random" else 1)
    runs: list[Any] = []
    errors: list[list[float]] = []
    seeds = range(arguments.seed, arguments.seed + num_starts)
    for number, seed in enumerate(seeds, 1):
        show = _choose_show(arguments.quiet)
        with _Run(arguments.iterations, show=show, log_every=10) as progress:
            report(f"start {number} of {num_starts}")
            progress.tol = arguments.tol if is_gaussian else 0.0
            runs.append(
                solver(
                    x,
                    arguments.rank,
                    n_iter_max=arguments.iterations,
                    init=arguments.init,
                    tol=0 if is_gaussian else arguments.tol,
                    random_state=seed,
                    callback=progress,
                )
            )
        errors.append(progress.errors)
        if progress.is_interrupted:
            break
    starts = Starts(runs, errors, list(seeds)[: len(runs)], None)
    matches = np.array([factor_match_score(starts.best, run) for run in runs])
    return Starts(runs, errors, starts.seeds, matches)


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


def try_folder(folder: Path) -> None:
    """Find out before a long run what writing would lack: packages, or the folder."""
    try:
        import matplotlib  # noqa: F401
        import pandas  # noqa: F401
    except ImportError as error:
        need = 'results need pandas and Matplotlib: pip install "tensorly-flycoo[tables]"'
        raise ImportError(f"{need} ({error})") from None
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder / "model.npz")
        if is_new:
            folder.rmdir()
    except OSError as error:
        raise OSError(f"--output is {folder}, where nothing can be written: {error}") from None


def describe(cp: LabelledCP, top: int) -> str:
    """Return the largest labels of each component as text."""
    tops = {name: cp.top(name, top) for name in cp.names}
    width = max(map(len, tops))
    lines = []
    for number, weight in enumerate(cp.weights.tolist()):
        lines.append(f"\ncomponent {number}, weight {weight:.4g}")
        for name, components in tops.items():
            labels = components[number].items()
            entries = [f"{label} {value:.2g}" for label, value in labels]
            lines.append(f"  {name:{width}}  {', '.join(entries)}")
    return "\n".join(lines) + "\n"


def write_results(cp: LabelledCP, folder: Path, arguments: argparse.Namespace) -> Iterator[Path]:
    """Write all files into the folder, the most precious first; yield the path of each."""
    folder.mkdir(parents=True, exist_ok=True)
    cp.save(folder / "model.npz")
    yield folder / "model.npz"
    weights, frames = cp.to_frames()
    for number, frame in enumerate(frames):
        name = re.sub(r"[^\w.-]+", "_", str(frame.index.name))[:_MAX_NAME_LENGTH]
        yield _write_text(folder / f"mode{number}_{name}.csv", frame.to_csv())
    lines = [f"{number},{weight!r}\n" for number, weight in enumerate(weights.tolist())]
    yield _write_text(folder / "weights.csv", "component,weight\n" + "".join(lines))
    try:
        cp.plot(arguments.top, arguments.lines).savefig(folder / "components.png", dpi=100)
    except Exception as error:
        raise RuntimeError(
            f"the picture could not be drawn, the other files are complete: {error}"
        ) from error
    yield folder / "components.png"


def _write_text(path: Path, text: str) -> Path:
    with replace_text(path) as file:
        file.write(text.encode())
    return path
