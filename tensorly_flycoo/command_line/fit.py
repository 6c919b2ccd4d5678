"""The command "fit"."""

import argparse

from .. import LabelledCP, LabelledTensor, cp_fit, diagnose
from ..base.watching import watch
from ..loop.cp_model import count_zeros
from ..loop.terracini import count_tangents
from ..models.best_of import Starts
from .fitting import check_options, choose_loss, choose_method, decompose, use_device
from .profiles import find_profiles, show_profiles
from .reading import (
    check_exists,
    check_modes,
    check_suffix,
    hold_out_tenth,
    name_after,
    read_tensor,
)
from .writing import print_after, try_folder, write_results

#: A diagnosis with more tangents would take minutes; `diagnose` is there for those who wait.
_MAX_TANGENTS = 4096


def fit(arguments: argparse.Namespace) -> None:
    """Decompose a file of events into RANK components.

    A component is a pattern: some users who bought some items on some days. Each column in
    --modes becomes a mode of a sparse tensor. Each row of the file adds to one cell: 1, or its
    entry in the column --values. Cells without a row are zeros, or unknown with --observed.
    """
    suffix = check_suffix(arguments.file, arguments)
    loss = choose_loss(arguments, suffix)
    check_options(arguments, suffix, loss)
    _check_start(arguments)
    check_exists(arguments.file)
    method = choose_method(loss, arguments.observed, arguments.non_negative)
    folder = arguments.output or name_after(arguments.file, f"_rank{arguments.rank}")
    held_out = None
    with use_device(arguments):
        try_folder(folder)
        x = read_tensor(arguments, suffix)
        check_modes("--lines", arguments.lines or (), x.labels)
        lines = [f"{arguments.file}: {x!r}, loss {loss}"]
        if arguments.observed:
            x, held_out = hold_out_tenth(x, arguments.seed)
        starts = decompose(x, method, arguments, held_out)
    cp = starts.best
    if held_out is None:
        quality = _describe_error(starts, method.error_name)
    else:
        quality = _describe_predictions(cp, cp.flycoo.l2_reg, x, held_out)
    num_iterations = len(starts.errors[starts.best_number])
    lines.append(f"{quality} after {num_iterations} iterations")
    if len(starts.runs) > 1:
        lines.append(_describe_match(starts))
    lines += _check_model(cp, arguments)
    profiles = find_profiles(cp)
    if not arguments.quiet:
        lines += [show_profiles(cp, profiles).describe(arguments.top), ""]
    with watch("writing the results"):
        written = write_results(cp, profiles, folder, arguments)
    print_after(written, lines)
    if not arguments.quiet and count_tangents(cp.shape, cp.rank) <= _MAX_TANGENTS:
        with watch("judging the model"):
            print(_describe_trust(x, cp))


def _check_start(arguments: argparse.Namespace) -> None:
    """Refuse a start that others do not go with."""
    if arguments.init == "random":
        return
    if (arguments.starts or 1) > 1:
        arguments.refuse("--init svd is one start, the same each time: leave out --starts")
    if arguments.observed:
        arguments.refuse("--observed begins with --init random")


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


def _check_model(cp: LabelledCP, arguments: argparse.Namespace) -> list[str]:
    """Refuse a model that is zero, and return a warning of components that are."""
    if arguments.observed:
        num_zero = count_zeros(cp)
        advice = "try a smaller --l2-reg or a smaller --rank"
    else:
        num_zero = int((cp.weights == 0).sum())
        advice = "try --init random, another --seed or a smaller --rank"
    if num_zero == cp.rank:  # which counts biases too
        raise ValueError(f"the model is zero, and nothing is written: {advice}")
    if not num_zero:
        return []
    return [f"warning: the weight of {num_zero} of {arguments.rank} components is zero: {advice}"]
