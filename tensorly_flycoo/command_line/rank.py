"""The command "rank"."""

import argparse

from .. import select_rank
from ..base.watching import is_seen
from ..decomposition.methods import METHODS
from .fitting import check_options, choose_loss, choose_method, list_options, use_device
from .reading import check_exists, check_suffix, name_after, read_tensor
from .writing import print_after, try_folder, write_ranks


def rank(arguments: argparse.Namespace) -> None:
    """Suggest a rank: how many components a file of events has.

    Some cells are held out, and models of each rank in --ranks have to predict them. The suggested
    rank is the lowest one that predicts them as well as the best. Options of the tensor and of the
    models are those of "fit".
    """
    suffix = check_suffix(arguments.file, arguments)
    loss = choose_loss(arguments, suffix)
    check_options(arguments, suffix, loss)
    check_exists(arguments.file)
    method = choose_method(loss, arguments.observed, arguments.non_negative)
    if not method.can_hold_out:
        method = METHODS["non_negative_parafac"]  # the same model by other updates
    folder = arguments.output or name_after(arguments.file, "_ranks")
    with use_device(arguments):
        try_folder(folder)
        x = read_tensor(arguments, suffix)
        selection = select_rank(
            x,
            arguments.ranks,
            arguments.starts,
            method.name,
            random_state=arguments.seed,
            quiet=not is_seen(),
            **list_options(method, arguments),
        )
    lines = [f"{arguments.file}: {x!r}, loss {loss}"]
    if not arguments.quiet:
        lines.append(repr(selection))
    lines.append(f"suggested rank: {selection.rank}")
    print_after(write_ranks(selection, folder), lines)
