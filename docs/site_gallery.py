"""The gallery: which examples are in it, which run, with which arguments, and their pictures."""

import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

#: The examples in the order of the gallery, with the arguments of those that run.
FOLDER = Path(tempfile.mkdtemp(prefix="gallery-"))
EXAMPLES = {
    "answers": [str(FOLDER)],
    "flights": ["--output", str(FOLDER / "flights.png")],
    "smoothing": ["--output", str(FOLDER / "smoothing.png")],
    "doubt": ["--output", str(FOLDER / "doubt.png")],
    "baby_names": ["--output", str(FOLDER / "baby_names.png")],
    "pictures": ["--output", str(FOLDER)],
    "ratings": [],
    "recommending": [],
    "cold_start": [],
    "communication": [str(FOLDER)],
    "coupling": [],
    "planes": [],
    "knowledge_graph": [],
    "aircraft": [],
    "migrating": [],
    "large": ["--scale", "0.005", "--iterations", "30"],
    "cluster": ["--iterations", "20"],
    "compare_with_tensorly": None,
    "benchmark_als": None,
    "benchmark_rivals": None,
    "benchmark_admm": None,
    "benchmark_ranks": None,
    "benchmark_sparse": None,
    "benchmark_parafac2": None,
    "counts": None,
    "benchmark_counts": None,
    "seconds_to_fit": None,
    "completion": None,
}
RUN = "|".join(rf"/{name}\.py$" for name, arguments in EXAMPLES.items() if arguments is not None)
LEFT_OUT = rf"(^|/)(?!({'|'.join(EXAMPLES)})\.py$)[^/]*\.py$"


class Order:
    """The order of `EXAMPLES`."""

    def __init__(self, folder):
        self.names = list(EXAMPLES)

    def __call__(self, filename):
        return self.names.index(Path(filename).stem)

    def __repr__(self):
        return "<the order of EXAMPLES>"


def draw_thumbnail():
    """Draw what the gallery shows for examples without a picture: some nonzeros of a tensor."""
    figure = Figure(figsize=(4, 2.8))
    axes = figure.add_axes((0, 0, 1, 1), projection="3d")
    x, y, z = np.random.RandomState(0).randint(0, 9, (3, 60))
    axes.scatter(x, y, z, c=z, cmap="viridis", s=60, marker="s", depthshade=True)
    axes.set(xticklabels=[], yticklabels=[], zticklabels=[])
    path = FOLDER / "default" / "thumbnail.png"
    path.parent.mkdir()
    figure.savefig(path, dpi=100)
    return str(path)


def give_arguments(gallery_conf, script):
    """Return the command-line arguments of an example."""
    return EXAMPLES[Path(script["src_file"]).stem]


def take_pictures(block, block_vars, gallery_conf):
    """Take the pictures that an example has written."""
    taken = []
    for picture in sorted(FOLDER.glob("*.png"), key=lambda path: path.stat().st_mtime_ns):
        path = Path(next(block_vars["image_path_iterator"]))
        path.write_bytes(picture.read_bytes())
        picture.unlink()
        taken.append(str(path))
    return figure_rst(taken, gallery_conf["src_dir"])
