"""The commands and their options; what fails becomes one line and an exit code."""

import argparse
import contextlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import __version__, set_progress
from .environment import autoload, info, run_script
from .fit import fit
from .options import (
    add_anomalies_options,
    add_diagnose_options,
    add_fit_options,
    add_predict_options,
    add_rank_options,
    add_recommend_options,
)
from .rank import rank
from .reading import SUFFIXES
from .saved_models import anomalies, diagnose, predict, recommend
from .wording import spell, spell_warnings

#: Errors that a command reports in one line: of the data, the disk, or a missing package.
_ERRORS = (ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)

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
  profile_time.csv   for a mode of times, the means by hour of the day and by weekday
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
  Which rank? python -m tensorly_flycoo rank, with the same file and options.
  Can you trust it? If the starts do not match, choose a smaller rank.
  Ctrl-C ends the run after the current iteration and writes the results so far.

  What does it say of new data? The commands predict, recommend and anomalies take model.npz.

needs: pip install "tensorly-flycoo[tables]", or ".[tables]" in a checkout
"""
_RANK_EPILOG = """what you get, in the folder --output:
  ranks.csv  for each rank its error, held-out loss, core consistency and match of the runs
  ranks.png  the same as a picture

examples:
  python -m tensorly_flycoo rank events.parquet --modes user,item,time:day --ranks 1-6
  python -m tensorly_flycoo rank ratings.csv --modes user,film --values stars \\
      --aggregate mean --observed --biases
"""
_PREDICT_EPILOG = """example:
  python -m tensorly_flycoo predict ratings_rank5/model.npz new.csv
"""
_RECOMMEND_EPILOG = """examples:
  python -m tensorly_flycoo recommend ratings_rank5/model.npz --mode user ann bob \\
      --exclude ratings.csv
  python -m tensorly_flycoo recommend ratings_rank5/model.npz --mode user -n 5
"""
_ANOMALIES_EPILOG = """example:
  python -m tensorly_flycoo anomalies events_rank8/model.npz events.parquet
"""
_DIAGNOSE_EPILOG = """example:
  python -m tensorly_flycoo diagnose events_rank8/model.npz events.parquet
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a wrong command line raises SystemExit."""
    arguments = make_parser().parse_args(argv)
    if arguments.run is run_script:  # whose exceptions are not ours to explain
        if not Path(arguments.script).exists():
            print(f"error: there is no file {arguments.script}", file=sys.stderr)
            return 2
        run_script(arguments)
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):  # labels may be what its encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with spell_warnings(), _obey_quiet(arguments):
            arguments.run(arguments)
        print(end="", flush=True)
    except BrokenPipeError:  # "| head" has read enough; results are written before this
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except _ERRORS as error:
        print("error:", spell(str(error)), file=sys.stderr)
        return 1
    return 0


def _obey_quiet(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Show no progress with --quiet, which not all commands have."""
    if getattr(arguments, "quiet", False):
        return set_progress(False)
    return contextlib.nullcontext()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        "python -m tensorly_flycoo",
        description=_DESCRIPTION,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tensorly-flycoo {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    fit_parser = _add_command(commands, "fit", fit, _FIT_EPILOG)
    _add_file(fit_parser)
    add_fit_options(fit_parser)

    rank_parser = _add_command(commands, "rank", rank, _RANK_EPILOG)
    _add_file(rank_parser)
    add_rank_options(rank_parser)

    predict_parser = _add_command(commands, "predict", predict, _PREDICT_EPILOG)
    _add_model(predict_parser)
    _add_file(predict_parser)
    add_predict_options(predict_parser)

    recommend_parser = _add_command(commands, "recommend", recommend, _RECOMMEND_EPILOG)
    _add_model(recommend_parser)
    add_recommend_options(recommend_parser)

    anomalies_parser = _add_command(commands, "anomalies", anomalies, _ANOMALIES_EPILOG)
    _add_model(anomalies_parser)
    _add_file(anomalies_parser)
    add_anomalies_options(anomalies_parser)

    diagnose_parser = _add_command(commands, "diagnose", diagnose, _DIAGNOSE_EPILOG)
    _add_model(diagnose_parser)
    _add_file(diagnose_parser)
    add_diagnose_options(diagnose_parser)

    _add_command(commands, "info", info)

    run_parser = _add_command(commands, "run", run_script)
    run_parser.add_argument("--profile", action="store_true", help="print what ran where, how long")
    run_parser.add_argument("script", help="a Python file")
    run_parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")

    autoload_parser = _add_command(commands, "autoload", autoload)
    autoload_parser.add_argument("state", choices=("on", "off"))
    return parser


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help=f"a table or tensor: {', '.join(SUFFIXES)}")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help='the model.npz that "fit" wrote')


def _add_command(
    commands: Any, name: str, run: Callable[..., None], epilog: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that its function's docstring describes, and return its parser."""
    text = inspect.getdoc(run) or ""
    summary = text.partition("\n")[0]
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, refuse=command.error)
    return command
