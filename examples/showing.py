"""What the examples share: components of labelled models as text, and one style for pictures."""

import numpy as np

NOTE = "Columns have norm 1. Panels of one mode have one scale; scales differ between modes."


def list_totals(cp_tensor):
    """Return the sum of each component over all cells of the tensor."""
    weights, frames = cp_tensor.to_frames()
    return weights * np.prod([frame.sum() for frame in frames], axis=0)


def list_shares(cp_tensor):
    """Return a DataFrame for each mode: each label's share of each component.

    The scale and sign of a single column mean nothing: columns of a component can exchange them. So
    make every column positive on average and sum to 1. Plain parafac goes below zero where one
    component corrects another: clip that.
    """
    shares = {}
    for frame in cp_tensor.to_frames()[1]:
        positive = (frame * np.sign(frame.sum())).clip(lower=0)
        shares[frame.index.name] = positive / positive.sum()
    return shares


def format_largest(shares, count):
    """Format the largest shares of one component, leaving out those below 2%."""
    largest = shares[shares >= 0.02].nlargest(count)
    return ", ".join(f"{label} {share:.0%}" for label, share in largest.items())


def save_components(cp_tensor, path, title, **options):
    """Draw the components of a labelled model, with a note on their scale."""
    figure = cp_tensor.plot(**options)
    figure.suptitle(title, size=14)
    figure.supxlabel(NOTE, size=10)
    save(figure, path)


def save(figure, path):
    """Write a figure in the style of all examples, and print its path."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=80)
    print(f"Wrote {path}")
