"""The command line, ``python -m tensorly_flycoo``: from a file of events to named components."""

import argparse
import contextlib
import importlib.util
import inspect
import os
import re
import runpy
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, SupportsFloat

import numpy as np
import tensorly as tl

from . import (
    LabelledCP,
    LabelledTensor,
    Progress,
    __version__,
    cp_fit,
    from_dataframe,
    profile,
    read_tns,
    set_device,
    show_versions,
)
from .base.checks import require
from .base.value_dtypes import VALUE_DTYPES
from .decomposition.methods import METHODS, Method
from .io.dataframe import AGGREGATES, MISSING
from .io.files import replace_file, try_writing
from .io.table_files import read_table
from .loop.cp_model import count_zeros
from .loop.losses import EXACT_LOSSES
from .models.best_of import Starts
from .models.match import factor_match_score

#: What can be read, by the ends of names.
_TENSORS = (".tns", ".tns.gz", ".tns.zst", ".ttx", ".mtx")
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", *_TENSORS)

#: What a command reports in one line: the data, the disk or a missing package is to blame.
_ERRORS = (ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)

#: Random starts, of which the best run is kept.
_NUM_STARTS = 5

#: The longest part of a file's name that a mode gives; systems allow about 250 bytes.
_MAX_NAME_LENGTH = 50

_DESCRIPTION = "Decompose big sparse tensors: a file of events becomes a few named components."
_CODES = """exit codes:
  0    done
  1    it failed because of the data, the disk or a missing package; the message says which
  2    the command line is wrong
  130  interrupted by a second Ctrl-C
"""
_FIT_EPILOG = """what you get, in the folder --output:
  components.png     a row of panels for each component: bars for names, lines for
                     numbers and dates
  mode0_user.csv...  for each mode, a row for each label and a column for each component
  weights.csv        how large each component is; the columns above have norm 1
  model.npz          all of it for Python: tensorly_flycoo.LabelledCP.load(path)

examples:
  python -m tensorly_flycoo fit events.parquet --modes user,item,time:day --rank 8
  python -m tensorly_flycoo fit ratings.csv --modes user,film --values stars \\
      --aggregate mean --rank 5 --observed --biases
  python -m tensorly_flycoo fit events.csv --modes user,item --rank 4 --non-negative
  python -m tensorly_flycoo fit nell-2.tns.gz --rank 16 --output nell

how to go on:
  Are cells without a row unknown, as ratings not given are? --observed; with --biases it also
  learns who rates high. Compare its error at held-out entries with that of the mean.
  Are the --values counts? --loss poisson_count fits them better than squared errors do.
  Is a component hard to read? --non-negative leaves out minus signs, which cancel in pairs.
  Which rank? Try several, or tensorly_flycoo.select_rank in Python.
  Can you trust it? If the starts do not match, choose a smaller rank.
  Ctrl-C ends the run after the current iteration and writes the results so far.

needs: pip install "tensorly-flycoo[tables]", or ".[tables]" in a checkout
"""

#: What errors of Python's functions and of pyarrow say, as the command line does.
_SPELLINGS = {
    "Expected 1 columns": "expected 1 column (or give --sep ';')",
    "df has": "the file has",
    "text, expected numbers": "text, expected numbers (or empty: --missing-text NA)",
    "init='random'": "--init random",
    'missing="drop"': "--missing drop",
    ', or missing="unknown" if cells without a row are': "",
    'aggregate="sum"': "--aggregate sum",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a wrong command line raises SystemExit."""
    arguments = _make_parser().parse_args(argv)
    if arguments.run is run_script:  # whose exceptions are not ours to explain
        if not Path(arguments.script).exists():
            print(f"error: there is no file {arguments.script}", file=sys.stderr)
            return 2
        run_script(arguments)
        return 0
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except _ERRORS as error:
        print("error:", _spell(str(error)), file=sys.stderr)
        return 1
    return 0


def _spell(text: str) -> str:
    """Say what Python's functions say as the command line does."""
    for in_python, here in _SPELLINGS.items():
        text = text.replace(in_python, here)
    return text


def _make_parser() -> argparse.ArgumentParser:
    options: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
        "python -m tensorly_flycoo", description=_DESCRIPTION, epilog=_CODES, **options
    )
    parser.add_argument("--version", action="version", version=f"tensorly-flycoo {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    def add(name: str, run: Callable[..., None], epilog: str | None = None) -> Any:
        """Add a command that its function's docstring describes."""
        text = inspect.getdoc(run) or ""
        texts: Any = {"help": text.partition("\n")[0], "description": text, "epilog": epilog}
        command = commands.add_parser(name, **texts, **options)
        command.set_defaults(run=run, refuse=command.error)
        return command

    fit_parser = add("fit", fit, _FIT_EPILOG)
    fit_parser.add_argument("file", type=Path, help=f"a table or tensor: {', '.join(SUFFIXES)}")
    _add_fit_options(fit_parser)
    add("info", info)
    run_parser = add("run", run_script)
    run_parser.add_argument("--profile", action="store_true", help="print what ran where, how long")
    run_parser.add_argument("script", help="a Python file")
    run_parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")
    add("autoload", autoload).add_argument("state", choices=("on", "off"))
    return parser


def _add_fit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the tensor").add_argument
    text = "columns, separated by commas, times rounded as in time:day; names for a .tns"
    add("--modes", type=_split, help=text)
    add("--values", metavar="COLUMN", help="the column of values (default: count rows)")
    text = "of the values of rows of one cell (default: sum, with a warning)"
    add("--aggregate", choices=AGGREGATES, help=text)
    text = "rows with empty entries are an error, or are left out (default: raise)"
    add("--missing", default="raise", choices=MISSING, help=text)
    text = "texts, separated by commas, that mean an empty entry too, such as NA,null"
    add("--missing-text", type=_split, default=[], metavar="TEXTS", help=text)
    text = "the character that separates the columns (default: a comma; a tab in .tsv)"
    add("--sep", type=_separator, help=text)
    text = "the first line of the text file is a row; the columns are called 1, 2, ..."
    add("--no-header", action="store_true", help=text)
    add("--dtype", default="float64", choices=tuple(VALUE_DTYPES))
    add = parser.add_argument_group("the model").add_argument
    add("--rank", type=_count, required=True, help="the number of components")
    text = "gaussian: squared errors; poisson_count: the likelihood of counts, with a non-negative "
    text += "model (default: poisson_count if rows are counted, else gaussian)"
    add("--loss", choices=EXACT_LOSSES, help=text)
    add("--non-negative", action="store_true", help="allow no negative element in the model")
    text = "cells without a row are unknown, not zeros; a tenth of the others is held out"
    add("--observed", action="store_true", help=text)
    add("--biases", action="store_true", help="with --observed: a mean, and a bias of each label")
    text = "with --observed: the ridge (default: the best for the held-out entries)"
    add("--l2-reg", type=float, metavar="RIDGE", help=text)
    add("--iterations", type=_count, default=100, help="the most to do (default: 100)")
    text = "stop when the fit or loss improves by less than this part of it (default: 1e-6)"
    add("--tol", type=float, default=1e-6, help=text)
    add("--init", default="random", choices=("random", "svd"), help="the start (default: random)")
    add("--starts", type=_count, help=f"random starts; the best is kept (default: {_NUM_STARTS})")
    add("--seed", type=int, default=0, help="of the first start; the next adds 1 (default: 0)")
    add("--device", choices=("auto", "cpu", "cuda"), help="(default: a GPU if there is one)")
    add = parser.add_argument_group("the results").add_argument
    text = "where to write; files there are replaced (default: the file's name and the rank)"
    add("--output", type=Path, metavar="FOLDER", help=text)
    add("--top", type=_count, default=6, help="labels to show for each component (default: 6)")
    add("--lines", type=_split, help="modes drawn as lines, not bars (default: numbers and dates)")
    add("--quiet", action="store_true", help="print neither progress nor components")


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


def fit(arguments: argparse.Namespace) -> None:
    """Decompose a file of events into RANK components.

    A component is a pattern: some users who bought some items on some days. Each column in
    --modes becomes a mode of a sparse tensor. Each row of the file adds to one cell: 1, or its
    entry in the column --values. Cells without a row are zeros, or unknown with --observed.
    """
    refuse: Callable[[str], NoReturn] = arguments.refuse
    name = arguments.file.name
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), None)
    if suffix is None:
        refuse(f"{arguments.file} is not one of {', '.join(SUFFIXES)}")
    is_table = suffix not in _TENSORS
    if not arguments.modes and is_table:
        refuse("--modes is missing: which columns, such as --modes user,item,day")
    if arguments.init == "svd" and (arguments.starts or 1) > 1:
        refuse("--init svd is one start, the same each time: leave out --starts")
    if not arguments.observed and (arguments.biases or arguments.l2_reg is not None):
        refuse("--biases and --l2-reg are for --observed, which is missing")
    are_counts = is_table and (arguments.values is None or arguments.aggregate == "count")
    arguments.loss = arguments.loss or ("poisson_count" if are_counts else "gaussian")
    if arguments.observed and (arguments.loss == "poisson_count" or arguments.init == "svd"):
        refuse("--observed is for --values, by --loss gaussian and --init random")
    if not arguments.file.exists():
        raise FileNotFoundError(f"{arguments.file} does not exist")
    method = _choose_method(arguments)
    folder = arguments.output or Path(f"{name.removesuffix(suffix)}_rank{arguments.rank}")
    device = set_device(arguments.device) if arguments.device else contextlib.nullcontext()
    with device, tl.backend_context("flycoo"):
        try_folder(folder)
        x = read_tensor(arguments, suffix)
        for mode in arguments.lines or ():
            if mode not in x.labels:
                raise ValueError(f"--lines has {mode!r}, expected some of {', '.join(x.labels)}")
        if not arguments.quiet:
            print(f"{arguments.file}: {x!r}, loss {arguments.loss}", flush=True)
        own: dict[str, Any] = {}
        if arguments.observed:
            x, held_out = _hold_out(x, arguments.seed)
            own = {"biases": arguments.biases, "non_negative": arguments.non_negative}
            own |= {"validation": held_out}
            own |= {} if arguments.l2_reg is None else {"l2_reg": arguments.l2_reg}
        starts = _decompose(x, method, arguments, own)
    errors = starts.errors[starts.best_number]
    cp = starts.best
    num_starts = len(starts.runs)
    is_loss = method.error_name == "loss"
    quality = f"loss {errors[-1]:.6g}" if is_loss else f"fit {1 - errors[-1]:.4g}"
    if arguments.observed:
        known, values = (of.tensor._sorted_nonzeros()[1] for of in (x, held_out))
        of_mean = float(((values - known.mean()) ** 2).mean()) ** 0.5
        quality = (
            f"l2_reg {cp.flycoo.l2_reg:g}, a root mean squared error of "
            f"{cp_fit(held_out, cp).rmse:.4g} at held-out entries ({of_mean:.4g} by their mean)"
        )
    print(f"{quality} after {len(errors) - 1} iterations")
    if num_starts > 1:
        print(
            f"the best of {num_starts} starts, with --seed {starts.seeds[starts.best_number]}; the "
            f"others match it by {starts.match:.2f} (1: the same components)"
        )
    num_zero = count_zeros(cp) if arguments.observed else int((cp.weights == 0).sum())
    advice = "a smaller --l2-reg" if arguments.observed else "--init random, another --seed"
    advice = f"try {advice} or a smaller --rank"
    if num_zero == cp.rank:  # which counts biases too
        raise ValueError(f"the model is zero, and nothing is written: {advice}")
    if num_zero:
        print(f"warning: the weight of {num_zero} of {arguments.rank} components is zero: {advice}")
    if not arguments.quiet:
        print(describe(cp, arguments.top))
    for path in write_results(cp, folder, arguments):
        print(f"wrote {path}")


def read_tensor(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read the file of `fit`; the labels of a .tns are its indices as in the file, from 1."""
    modes = arguments.modes
    values = arguments.values
    if suffix not in _TENSORS:
        options = {name: getattr(arguments, name) for name in ("aggregate", "missing", "dtype")}
        options["zeros"] = "keep" if arguments.observed else "drop"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            table = read_table(
                arguments.file,
                modes,
                values,
                separator=arguments.sep or ("\t" if suffix.startswith(".tsv") else ","),
                has_header=not arguments.no_header,
                missing_text=arguments.missing_text,
            )
            labelled = from_dataframe(table, modes, values, **options)
        for warning in caught:
            print("warning:", _spell(str(warning.message)), file=sys.stderr)
        return labelled
    if values is not None:
        raise ValueError("--values is for tables: a .tns file has its values in the last field")
    x = read_tns(arguments.file, dtype=arguments.dtype)
    if modes and len(modes) != x.ndim:
        raise ValueError(f"--modes has {len(modes)} names, expected {x.ndim}, one for each mode")
    labels: Any = [np.arange(1, size + 1) for size in x.shape]
    return LabelledTensor(x, dict(zip(modes, labels, strict=True)) if modes else labels)


class _Run(Progress):
    """Progress that also ends the run once a fit, however small, hardly improves."""

    tol = 0.0

    def __call__(self, model: Any, error: SupportsFloat = np.nan) -> bool:
        if super().__call__(model, error) or not self.tol or len(self.errors) < 3:
            return self._is_interrupted
        return self.errors[-2] - self.errors[-1] < self.tol * (1 - self.errors[-1])


def _hold_out(x: LabelledTensor, seed: int) -> Iterator[LabelledTensor]:
    """Yield nine tenths of the entries, and one to judge by."""
    coords, values = x.tensor._sorted_nonzeros()
    places = x.tensor._engine.xp.asarray(np.random.RandomState(seed).permutation(x.nnz))
    count = max(1, x.nnz // 10)
    for own in (places[count:], places[:count]):
        yield x._replace(tensor=x.tensor._rebuild(coords[:, own], values[own]))


def _choose_method(arguments: argparse.Namespace) -> Method:
    if arguments.observed:
        return METHODS["observed_parafac"]
    if arguments.loss == "poisson_count":
        return METHODS["generalized_parafac"]
    return METHODS["non_negative_parafac_hals" if arguments.non_negative else "parafac"]


def _decompose(
    x: LabelledTensor, method: Method, arguments: argparse.Namespace, own: dict[str, Any]
) -> Starts:
    """Run all starts, or until Ctrl-C those so far, with `own` options for `observed_parafac`."""
    is_fit = method.knows_zeros and method.error_name == "error"  # of which `tol` is a part
    num_starts = arguments.starts or (_NUM_STARTS if arguments.init == "random" else 1)
    has_bar = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
    show = None if arguments.quiet else "bar" if has_bar else "log"
    runs: list[Any] = []
    errors: list[list[float]] = []
    seeds = range(arguments.seed, arguments.seed + num_starts)
    for number, seed in enumerate(seeds, 1):
        with _Run(arguments.iterations, show=show, log_every=10) as progress:
            progress._show_stage(f"start {number} of {num_starts}")
            progress.tol = arguments.tol if is_fit else 0.0
            options = {"init": arguments.init, "n_iter_max": arguments.iterations}
            options |= {"tol": 0 if is_fit else arguments.tol, "random_state": seed}
            options |= own | {"callback": progress}
            options = method.prefer_momentum(x, options, one_by_one=True)
            runs.append(method.function(x, arguments.rank, **options))
        errors.append(progress.errors)
        if own:  # the ridge is chosen once, and the iteration by the held-out entries
            own["l2_reg"] = runs[-1].flycoo.l2_reg
            errors[-1] = progress.errors[: 2 + int(np.argmin(progress.errors[1:]))]
        if progress._is_interrupted:
            break
    starts = Starts(runs, errors, list(seeds)[: len(runs)], None)
    matches = np.array([factor_match_score(starts.best, run) for run in runs])
    return Starts(runs, errors, starts.seeds, matches)


def try_folder(folder: Path) -> None:
    """Find out before a long run what writing would lack: packages, or the folder."""
    for module in ("matplotlib", "pandas"):
        require(module, 'results need pandas and Matplotlib: pip install "tensorly-flycoo[tables]"')
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
        title = cp.components[number]
        lines.append(f"\n{'component ' if title == number else ''}{title}, weight {weight:.4g}")
        for name, components in tops.items():
            if title not in (number, f"{name} bias"):
                continue  # it is one number there
            entries = [f"{label} {value:.2g}" for label, value in components[number].items()]
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
    pairs = zip(cp.components, weights.tolist(), strict=True)
    lines = [f"{component},{weight!r}\n" for component, weight in pairs]
    yield _write_text(folder / "weights.csv", "component,weight\n" + "".join(lines))
    try:
        cp.plot(arguments.top, arguments.lines).savefig(folder / "components.png", dpi=100)
    except Exception as error:
        raise RuntimeError(
            f"the picture could not be drawn, the other files are complete: {error}"
        ) from error
    yield folder / "components.png"


def _write_text(path: Path, text: str) -> Path:
    with replace_file(path) as file:
        file.write(text.encode())
    return path


def run_script(arguments: argparse.Namespace) -> None:
    """Run a Python script with TensorLy's backend "flycoo", unchanged.

    Its sparse tensors are decomposed by this package, everything else as before.
    """
    os.environ["TENSORLY_BACKEND"] = "flycoo"
    tl.set_backend("flycoo")
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path[0] = str(Path(arguments.script).resolve().parent)
    with profile() as recorded:
        try:
            runpy.run_path(arguments.script, run_name="__main__")
        finally:
            if arguments.profile:
                print(recorded, file=sys.stderr)


def autoload(arguments: argparse.Namespace) -> None:
    """Let TENSORLY_BACKEND=flycoo work in this environment without an import.

    "on" writes a .pth file of one line, which all Python processes read when they start, also
    spawned workers; with the variable they import the package at once. "off" removes it.
    """
    path = Path(sysconfig.get_path("purelib")) / "tensorly_flycoo_autoload.pth"
    if arguments.state == "on":
        is_wanted = "os.environ.get('TENSORLY_BACKEND') == 'flycoo'"
        _write_text(path, f"import os; {is_wanted} and __import__('tensorly_flycoo')\n")
        print(f"wrote {path}: TENSORLY_BACKEND=flycoo now works without an import")
    elif path.exists():
        path.unlink()
        print(f"removed {path}")
    else:
        print(f"there is no {path}")


def info(arguments: argparse.Namespace) -> None:
    """Print versions, the CPU, the GPU and the caches of compiled kernels, as for a bug report."""
    from .engines.cpu.sorting import pack_records

    show_versions()
    cupy = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    caches = {
        "CPU kernels": Path(pack_records.stats.cache_path),
        "GPU kernels": Path(cupy).expanduser(),
    }
    for name, folder in caches.items():
        files = [*folder.glob("*.nb[ic]"), *folder.glob("*.cubin")]
        nbytes = sum(file.stat().st_size for file in files)
        contents = f"{len(files)} files, {nbytes / 1e6:.1f} MB" if files else "empty"
        print(f"{name:15}  {folder}, {contents}")
