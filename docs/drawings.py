"""Write the drawings of "How it works": python docs/drawings.py

The drawings are inlined in pages and take the theme's colours, so that they are right in its dark
mode too. Opened on their own, they have the colours of the light theme.
"""

import itertools
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "drawings"

INK = "var(--pst-color-text-base, #222832)"
FAINT = "var(--pst-color-text-muted, #48566b)"
LINE = "var(--pst-color-border, #c9c9c9)"
ACCENT = "var(--pst-color-primary, #0a7d91)"
SECOND = "var(--pst-color-secondary, #8045e5)"
THIRD = "var(--pst-color-warning, #b85c00)"
FOURTH = "var(--pst-color-danger, #d72d47)"
PAPER = "var(--pst-color-surface, #f3f4f5)"

#: Eight nonzeros in the orders of both modes, and in memory while mode 1 is computed; as in the
#: README of the CUDA kernels, which a test compares with the code.
ORDERS = "abcdefgh", "caghfdbe"
STORAGE_1 = "acghbdef"

#: An example like the paper's: four hyperedges, three vertices in each mode, two partitions. A test
#: compares the vertices and the hyperedges in partition 0 | partition 1 with Algorithm 1.
HYPEREDGES = {"a": (0, 0, 1), "b": (1, 1, 0), "c": (2, 0, 2), "d": (2, 2, 0)}
VERTICES = ("2|01", "0|12", "0|12")
IN_PARTITIONS = ("cd|ab", "ac|bd", "bd|ac")


class Drawing:
    """An SVG of boxes, texts and arrows.

    Parameters
    ----------
    name : str
        Of the file.
    title : str
        What a reader who cannot see the drawing needs to know.
    width, height : int
    """

    def __init__(self, name, title, width, height):
        self.name, self.title, self.size = name, title, (width, height)
        self.parts = []

    def box(self, x, y, width, height, text="", stroke=LINE, fill=PAPER, ink=INK, opacity=1):
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}" '
            f'fill-opacity="{opacity}" stroke="{stroke}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, "middle", ink)

    def text(self, x, y, text, anchor="start", ink=INK, size=14, weight="normal"):
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}" font-size="{size}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def arrow(self, x1, y1, x2, y2, ink=FAINT, width=1.5):
        bend = (y1 + y2) / 2
        path = f"M{x1:g},{y1:g} C{x1:g},{bend:g} {x2:g},{bend:g} {x2:g},{y2:g}"
        if abs(x2 - x1) > 2 * abs(y2 - y1) and abs(y2 - y1) < 30:
            path = f"M{x1:g},{y1:g} L{x2:g},{y2:g}"
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="{width}" '
            f'marker-end="url(#{self.name}-head)"/>'
        )

    def line(self, points, ink):
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2.5"/>'
        )
        self.parts += [f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{ink}"/>' for x, y in points]

    def write(self):
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-labelledby="{self.name}-title" font-family="system-ui, sans-serif">\n'
            f'<title id="{self.name}-title">{escape(self.title)}</title>\n'
            f'<defs><marker id="{self.name}-head" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{FAINT}"/></marker></defs>'
        )
        lines = ['<div class="drawing">', head, *self.parts, "</svg>", "</div>"]
        (FOLDER / f"{self.name}.svg").write_text("\n".join(lines) + "\n")


def draw_mttkrp():
    """One nonzero selects a row of each other factor, and adds to a row of the result."""
    title = "A nonzero (i, j, k, v) adds v times row j of B times row k of C to row i of M."
    drawing = Drawing("mttkrp", title, 800, 210)
    drawing.text(20, 30, "nonzeros", weight="bold")
    rows = [("0", "4", "2", "1.5"), ("i", "j", "k", "v"), ("3", "0", "1", "2.0")]
    for line, row in enumerate(rows):
        chosen = line == 1
        for column, text in enumerate(row):
            stroke, fill = (ACCENT, ACCENT) if chosen else (LINE, PAPER)
            opacity = 0.15 if chosen else 1
            box = 20 + 42 * column, 45 + 40 * line, 38, 34
            drawing.box(*box, text, stroke, fill, INK, opacity)
    for left, name, row, label in (
        (270, "B", 2, "row j"),
        (440, "C", 0, "row k"),
        (640, "M", 1, "row i"),
    ):
        drawing.text(left, 30, name, weight="bold")
        for line in range(4):
            chosen = line == row
            ink = SECOND if name == "M" else ACCENT
            stroke, fill = (ink, ink) if chosen else (LINE, PAPER)
            opacity = 0.25 if chosen else 1
            drawing.box(
                left, 45 + 31 * line, 96, 25, label if chosen else "", stroke, fill, INK, opacity
            )
    drawing.arrow(192, 104, 264, 118)
    drawing.text(403, 112, "*", "middle", size=26)
    drawing.arrow(545, 89, 632, 89, SECOND, 1.5)
    drawing.text(588, 78, "v ·   +=", "middle", FAINT)
    note = "R numbers in each row; the products of all nonzeros with the same i are added up."
    drawing.text(20, 195, note, ink=FAINT)
    drawing.write()


def draw_layouts():
    """What each layout keeps in memory for a tensor of three modes."""
    title = (
        "replicated keeps three sorted copies; indexed one copy and two lists of positions; remap "
        "two copies between which the nonzeros move."
    )
    drawing = Drawing("layouts", title, 800, 250)
    for left, name in ((20, "replicated"), (290, "indexed"), (560, "remap")):
        drawing.text(left, 28, f'"{name}"', weight="bold", size=16)
    for mode in range(3):
        drawing.box(
            20,
            45 + 50 * mode,
            200,
            36,
            f"nonzeros, order of mode {mode}",
            ACCENT,
            ACCENT,
            INK,
            0.15,
        )
    drawing.box(290, 45, 200, 36, "nonzeros, order of mode 0", ACCENT, ACCENT, INK, 0.15)
    drawing.box(290, 95, 130, 24, "positions, mode 1")
    drawing.box(290, 133, 130, 24, "positions, mode 2")
    drawing.box(560, 45, 200, 36, "nonzeros, this mode", ACCENT, ACCENT, INK, 0.15)
    drawing.box(560, 133, 200, 36, "nonzeros, next mode", ACCENT, ACCENT, INK, 0.15)
    drawing.arrow(635, 83, 635, 129, SECOND, 2)
    drawing.text(648, 111, "while computing", ink=SECOND)
    drawing.box(560, 183, 200, 24, "where each one goes")
    for left, text in (
        (20, "fastest"),
        (290, "smallest"),
        (560, "always two copies"),
    ):
        drawing.text(left, 235, text, ink=FAINT)
    drawing.write()


def draw_hypergraph():
    """As in the paper, whole vertices go to partitions, which order the hyperedges."""
    title = (
        "Four nonzeros as hyperedges through a vertex of each mode. In each mode the vertex with "
        "two of them is partition 0, the others are partition 1; the nonzeros of a partition are "
        "neighbours in the order of that mode."
    )
    drawing = Drawing("hypergraph", title, 800, 262)
    inks = dict(zip(HYPEREDGES, (ACCENT, SECOND, THIRD, FOURTH), strict=True))
    lefts, tops = (40, 190, 340), (56, 140, 186)  # of the vertices: one, then two in a partition
    ends = {name: [] for name in HYPEREDGES}  # where a hyperedge meets its vertices
    for mode, (left, vertices) in enumerate(zip(lefts, VERTICES, strict=True)):
        drawing.text(left + 30, 24, f"mode {mode}", "middle", weight="bold")
        drawing.box(left, 44, 60, 60, fill="none", stroke=FAINT)
        drawing.box(left, 128, 60, 106, fill="none", stroke=FAINT)
        for index, top in zip(vertices.replace("|", ""), tops, strict=True):
            drawing.box(left + 10, top, 40, 36, f"{'ijk'[mode]}{index}")
            names = [name for name, coords in HYPEREDGES.items() if coords[mode] == int(index)]
            for place, name in enumerate(names):
                ends[name].append((left, top + 18 * (2 * place + 1) / len(names)))
    for name, points in ends.items():
        drawing.text(6, points[0][1] + 5, name, ink=inks[name], weight="bold")
        for (left, y), (next_left, next_y) in itertools.pairwise(points):
            drawing.line([(left + 50, y), (next_left + 10, next_y)], inks[name])
        drawing.line([(26, points[0][1]), (lefts[0] + 10, points[0][1])], inks[name])
    drawing.text(40, 253, "boxes: partition 0 of each mode, below it partition 1", ink=FAINT)
    drawing.text(480, 24, "the nonzeros in the order of", weight="bold")
    for mode, names in enumerate(IN_PARTITIONS):
        top = 44 + 66 * mode
        drawing.text(480, top + 22, f"mode {mode}")
        for place, name in enumerate(names.replace("|", "")):
            ink = inks[name]
            x = 550 + 54 * place + 14 * (place // 2)
            drawing.box(x, top, 48, 34, name, ink, ink, INK, 0.18)
    drawing.text(550, 238, "partition 0", ink=FAINT)
    drawing.text(672, 238, "partition 1", ink=FAINT)
    drawing.write()


def draw_groups():
    """One pass adds nonzeros up by pairs; both modes of the pair take their rows from that."""
    title = (
        "Modes 0 and 1 as a group: one pass over eight nonzeros computes T, a row for each pair of "
        "indices. Rows of T times rows of B add up to the rows of mode 0, and times rows of A to "
        "those of mode 1."
    )
    drawing = Drawing("groups", title, 800, 318)
    pairs = ((0, 0), (0, 2), (1, 2))
    nonzeros = [
        (pair, k) for pair, ks in zip((0, 1, 2), ("136", "04", "256"), strict=True) for k in ks
    ]
    drawing.text(10, 30, "nonzeros", weight="bold")
    drawing.text(10, 48, "i, j, k", ink=FAINT)
    drawing.text(10, 142, "T, by pairs", weight="bold")
    drawing.text(10, 160, "i, j", ink=FAINT)
    drawing.text(10, 260, "MTTKRPs", weight="bold")
    inks, middles = (ACCENT, SECOND, THIRD), (241, 463, 657)
    for middle, pair, ink in zip(middles, pairs, inks, strict=True):
        drawing.box(middle - 50, 126, 100, 34, f"T[{pair[0]}, {pair[1]}]", ink, ink, INK, 0.18)
    for place, (number, k) in enumerate(nonzeros):
        x, ink = 130 + 78 * place + 16 * number, inks[number]
        i, j = pairs[number]
        drawing.box(x, 20, 70, 34, f"{i}, {j}, {k}", ink, ink, INK, 0.18)
        drawing.arrow(x + 35, 57, middles[number], 122)
    drawing.text(10, 100, "+= v C[k]", ink=FAINT)
    rows = {(0, 0): 130, (0, 1): 256, (1, 0): 450, (1, 2): 576}  # mode and index: the left edge
    for (mode, index), left in rows.items():
        drawing.box(left, 244, 116, 34, f"mode {mode}, row {index}")
    for middle, pair, ink in zip(middles, pairs, inks, strict=True):
        for mode in range(2):
            drawing.arrow(middle, 163, rows[mode, pair[mode]] + 58, 240, ink)
    drawing.text(251, 302, "sums of T[i, j] * B[j] over j", "middle", FAINT)
    drawing.text(571, 302, "sums of T[i, j] * A[i] over i", "middle", FAINT)
    drawing.write()


def draw_remapping():
    """Tiles of mode 0 compute and write each nonzero to its bucket of mode 1."""
    title = (
        "Tiles ab, cd, ef, gh of mode 0 compute their rows and write each nonzero to the bucket of "
        "its place in mode 1, in the other copy; tiles ca, gh, fd, be of mode 1 read from there."
    )
    drawing = Drawing("remapping", title, 800, 345)
    rows = [
        (20, ("mode 0", "in this order"), ORDERS[0], 2),
        (130, ("the other copy", "by buckets"), STORAGE_1, 4),
        (240, ("mode 1", "in this order"), ORDERS[1], 2),
    ]
    places = []
    for top, labels, names, group in rows:
        drawing.text(10, top + 14, labels[0], weight="bold")
        drawing.text(10, top + 32, labels[1], ink=FAINT)
        places.append({})
        for place, name in enumerate(names):
            x = 150 + 72 * place + 10 * (place // group) * (group == 2) + 24 * (place // 4)
            colour = SECOND if ORDERS[1].index(name) >= 4 else ACCENT
            drawing.box(x, top, 62, 34, name, colour, colour, INK, 0.18)
            places[-1][name] = x + 31
    for name in ORDERS[0]:
        drawing.arrow(places[0][name], 56, places[1][name], 126)
        drawing.arrow(places[1][name], 166, places[2][name], 236)
    for left, name, colour in ((150, "first", ACCENT), (360, "second", SECOND)):
        drawing.box(left, 294, 14, 14, "", colour, colour, INK, 0.18)
        drawing.text(left + 22, 306, f"{name} bucket of mode 1", ink=FAINT)
    note = "Within a bucket the sequence of mode 0 is kept: neighbours are written to neighbours."
    drawing.text(150, 334, note, ink=FAINT)
    drawing.write()


def draw_tiles():
    """A long row spans tiles; their partial sums are added in order."""
    title = "Three tiles of equal size; a row that spans them leaves partial sums, added in order."
    drawing = Drawing("tiles", title, 800, 200)
    drawing.text(20, 26, "nonzeros, sorted by row", ink=FAINT)
    spans = [(0, 150, "row 0"), (150, 420, "row 1"), (570, 60, "row 2"), (630, 120, "row 3")]
    for number, (left, width, name) in enumerate(spans):
        colour = SECOND if number == 1 else ACCENT
        drawing.box(20 + left, 38, width, 34, name, colour, colour, INK, 0.18)
    for tile in range(3):
        left = 20 + 250 * tile
        drawing.box(left, 84, 246, 24, f"tile {tile}: one thread or block", fill="none")
    for tile in range(3):
        x = 143 + 250 * tile
        drawing.arrow(x, 112, 440 if tile == 1 else (410 if tile == 0 else 470), 148, SECOND)
    drawing.box(340, 152, 200, 30, "row 1 = sum in this order", SECOND, SECOND, INK, 0.18)
    drawing.write()


def main():
    """Write all drawings."""
    for draw in (
        draw_mttkrp, draw_layouts, draw_hypergraph, draw_remapping, draw_tiles, draw_groups,
    ):  # fmt: skip
        draw()


if __name__ == "__main__":
    main()
