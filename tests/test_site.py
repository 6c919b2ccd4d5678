"""The documentation site: it builds without a warning, has every public name, and links work."""

import importlib
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

#: Modules with public names; a name is listed where it is first public.
MODULES = (
    "tensorly_flycoo",
    "tensorly_flycoo.decomposition",
    "tensorly_flycoo.dask",
    "tensorly_flycoo.models",
)


def list_documented():
    """Return the public names of the API reference, with their modules."""
    found, module = [], None
    for line in (DOCS / "api.md").read_text().splitlines():
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.match(r"   (\w+)$", line):
            found.append(f"{module}.{match[1]}")
    return found


def test_the_api_reference_has_every_public_name_once():
    expected, known = set(), set()
    for name in MODULES:
        module = importlib.import_module(name)
        public = {public_name: id(getattr(module, public_name)) for public_name in module.__all__}
        assert set(module.__all__) == set(dir(module)) - {"decomposition", "models"}
        expected |= {f"{name}.{own}" for own, place in public.items() if place not in known}
        known |= set(public.values())
    documented = [
        name for name in list_documented() if not name.startswith("tensorly_flycoo.testing")
    ]
    assert len(documented) == len(set(documented))
    assert set(documented) == expected


def test_the_drawings_are_those_of_the_script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    drawings = importlib.import_module("drawings")
    monkeypatch.setattr(drawings, "FOLDER", tmp_path)
    drawings.main()
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in (DOCS / "drawings").iterdir()}


def test_the_drawn_hypergraph_is_partitioned_by_algorithm_1(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    drawings = importlib.import_module("drawings")
    names, coords = "".join(drawings.HYPEREDGES), np.array([*drawings.HYPEREDGES.values()]).T
    for rows, vertices, in_partitions, ids in zip(
        coords,
        drawings.VERTICES,
        drawings.IN_PARTITIONS,
        reference.remap_ids(coords, (3, 3, 3), num_partitions=2),
        strict=True,
    ):
        partition = reference.partition_mode(rows, 3, num_partitions=2)
        first, second = (set(map(int, part)) for part in vertices.split("|"))
        assert (first, second) == tuple(set(np.flatnonzero(partition == p)) for p in range(2))
        assert in_partitions.replace("|", "") == "".join(names[place] for place in np.argsort(ids))
        assert in_partitions.index("|") == reference.partition_sizes(rows, partition, 2)[0]


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        options = dict(attrs)
        self.anchors.update(value for key, value in attrs if key in ("id", "name") and value)
        link = options.get("href") if tag == "a" else options.get("src") if tag == "img" else None
        if link and not re.match(r"\w+:", link):
            self.links.add(urllib.parse.unquote(link))


#: Sphinx without its index for searches, which takes a seventh of the time.
BUILD = """
import sys
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.cmd.build import main
StandaloneHTMLBuilder.search = False
sys.exit(main(sys.argv[1:]))
"""


def build_site(folder):
    """Build the site, without running the examples of the gallery; return its folder."""
    command = [sys.executable, "-c", BUILD, "-q", "-W", "--keep-going", "-D", "plot_gallery=False"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder / "html"


def test_the_site(tmp_path):
    """One test, so that one process builds it."""
    site = build_site(tmp_path)
    check_bar(site)
    check_links(site)
    check_names_in_docstrings(site)


def check_bar(site):
    """These pages are in the bar, the others behind "More"."""
    text = (site / "index.html").read_text()
    bar = text.partition('<ul class="bd-navbar-elements')[2].partition(" dropdown")[0]
    pages = {Path(link).with_suffix("").as_posix() for link in _Page(bar).links}
    assert {"start", "uses", "gallery/index", "performance", "api", "command_line"} <= pages


def check_links(site):
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    assert site / "index.html" in pages
    broken = []
    for path, page in pages.items():
        for link in page.links:
            name, _, anchor = link.partition("#")
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not target.exists() or (anchor and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def check_names_in_docstrings(site):
    pages = {
        path.name: _Page(path.read_text()).links for path in (site / "generated").glob("*.html")
    }
    for name, link in {"select_rank": "best_of", "Progress": "coupled_parafac"}.items():
        target = f"tensorly_flycoo.{link}"
        assert f"{target}.html#{target}" in pages[f"tensorly_flycoo.{name}.html"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "tests/README.md"])
def test_links_of_the_repository_lead_somewhere(name):
    """Those of files that people read in the repository."""
    path = ROOT / name
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    local = [link for link in links if not link.startswith("https://")]
    assert local
    assert [link for link in local if not (path.parent / link).exists()] == []
