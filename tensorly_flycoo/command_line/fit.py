"""The command "fit"."""

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import tensorly as tl

from .. import LabelledCP, LabelledTensor, cp_fit, diagnose, set_device
from ..loop.cp_model import count_zeros
from ..models.best_of import Starts
from .fitting import choose_method, decompose
from .reading import SUFFIXES, find_suffix, hold_out_tenth, is_table, read_tensor
from .writing import try_folder, write_results


def fit(arguments: argparse.Namespace) -> None:
    """Decompose a file of events into RANK components.

    A component is a pattern: some users who bought some items on some days. Each column in
    --modes becomes a mode of a sparse tensor. Each row of the file adds to one cell: 1, or its
    entry in the column --values. Cells without a row are zeros, or unknown with --observed.
    """
    refuse: Callable[[str], NoReturn] = arguments.refuse
    suffix = find_suffix(arguments.file)
    if suffix is None:
        refuse(f"{arguments.file} is not one of {', '.join(SUFFIXES)}")
    loss = arguments.loss or _choose_loss(arguments, suffix)
    _check_options(arguments, suffix, loss)
    if not arguments.file.exists():
        raise FileNotFoundError(f"{arguments.file} does not exist")
    method = choose_method(loss, arguments.observed, arguments.non_negative)
    folder = arguments.output or _name_folder(arguments, suffix)
    device = set_device(arguments.device) if arguments.device else contextlib.nullcontext()
    held_out = None
    with device, tl.backend_context("flycoo"):
        try_folder(folder)
        x = read_tensor(arguments, suffix)
        _check_lines(arguments, x)
        if not arguments.quiet:
            print(f"{arguments.file}: {x!r}, loss {loss}", flush=True)
        if arguments.observed:
            x, held_out = hold_out_tenth(x, arguments.seed)
        starts = decompose(x, method, arguments, held_out)
    cp = starts.best
    if held_out is None:
        quality = _describe_error(starts, method.error_name)
    else:
        quality = _describe_predictions(cp, cp.flycoo.l2_reg, x, held_out)
    num_iterations = len(starts.errors[starts.best_number])
    print(f"{quality} after {num_iterations} iterations")
    if len(starts.runs) > 1:
        print(_describe_match(starts))
    _check_model(cp, arguments)
    if not arguments.quiet:
        print(cp.describe(arguments.top), end="\n\n")
    for path in write_results(cp, folder, arguments):
        print(f"wrote {path}")
    print(_describe_trust(x, cp))


def _choose_loss(arguments: argparse.Namespace, suffix: str) -> str:
    """Return the loss that suits the values: "poisson_count" if the rows of a table are counted."""
    are_counts = arguments.values is None or arguments.aggregate == "count"
    if is_table(suffix) and are_counts:
        return "poisson_count"
    return "gaussian"


def _check_options(arguments: argparse.Namespace, suffix: str, loss: str) -> None:
    """Refuse options that do not go together."""
    refuse: Callable[[str], NoReturn] = arguments.refuse
    if not arguments.modes and is_table(suffix):
        refuse("--modes is missing: which columns, such as --modes user,item,day")
    if arguments.init == "svd" and (arguments.starts or 1) > 1:
        refuse("--init svd is one start, the same each time: leave out --starts")
    if not arguments.observed and (arguments.biases or arguments.l2_reg is not None):
        refuse("--biases and --l2-reg are for --observed, which is missing")
    if arguments.observed and (loss == "poisson_count" or arguments.init == "svd"):
        refuse("--observed is for --values, by --loss gaussian and --init random")


def _name_folder(arguments: argparse.Namespace, suffix: str) -> Path:
    """Return the folder of results that is named like the file."""
    return Path(f"{arguments.file.name.removesuffix(suffix)}_rank{arguments.rank}")


def _check_lines(arguments: argparse.Namespace, x: LabelledTensor) -> None:
    """Refuse to draw lines of modes that the tensor does not have."""
    for mode in arguments.lines or ():
        if mode not in x.labels:
            raise ValueError(f"--lines has {mode!r}, expected some of {', '.join(x.labels)}")


def _describe_error(starts: Starts, error_name: str) -> str:
    """Describe how well the best run fits."""
    error = starts.final_errors[starts.best_number]
    if error_name == "loss":
        return f"loss {error:.6g}"
    return f"fit {1 - error:.4g}"


def _describe_match(starts: Starts) -> str:
    """Describe which of several starts is the best, and how well the others match it."""
    seed = starts.seeds[starts.best_number]
    return (
        f"the best of {len(starts.runs)} starts, with --seed {seed}; the others match it by "
        f"{starts.match:.2f} (1: the same components)"
    )


def _describe_trust(x: LabelledTensor, cp: LabelledCP) -> str:
    """Describe how far to trust a model."""
    found = diagnose(x, cp)
    return (
        f"diagnosis: {found.summary}; condition {found.condition:.3g}, gradient "
        f"{found.gradient:.1e} of its terms"
    )


def _describe_predictions(
    cp: LabelledCP, l2_reg: float, x: LabelledTensor, held_out: LabelledTensor
) -> str:
    """Describe how well a model predicts held-out entries, beside the mean of the others."""
    _, fitted_values = x.tensor._sorted_nonzeros()
    _, values = held_out.tensor._sorted_nonzeros()
    error_of_mean = float(((values - fitted_values.mean()) ** 2).mean()) ** 0.5
    return (
        f"l2_reg {l2_reg:g}, a root mean squared error of "
        f"{cp_fit(held_out, cp).rmse:.4g} at held-out entries ({error_of_mean:.4g} by their mean)"
    )


def _check_model(cp: LabelledCP, arguments: argparse.Namespace) -> None:
    """Refuse a model that is zero, and warn of components that are."""
    if arguments.observed:
        num_zero = count_zeros(cp)
        advice = "try a smaller --l2-reg or a smaller --rank"
    else:
        num_zero = int((cp.weights == 0).sum())
        advice = "try --init random, another --seed or a smaller --rank"
    if num_zero == cp.rank:  # which counts biases too
        raise ValueError(f"the model is zero, and nothing is written: {advice}")
    if num_zero:
        print(f"warning: the weight of {num_zero} of {arguments.rank} components is zero: {advice}")
