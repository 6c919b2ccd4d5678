"""Sphinx's configuration: python -m sphinx -W docs docs/_build (CONTRIBUTING.md says more)."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # of site_gallery and site_math

import site_gallery  # noqa: E402

import tensorly_flycoo  # noqa: E402

project = "tensorly-flycoo"
author = "The tensorly-flycoo developers"
copyright = f"2026, {author}"
version = release = tensorly_flycoo.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "site_math",  # of docstrings
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "conda", "joss", "upstream"]
nitpicky = False
suppress_warnings = ["config.cache"]  # the gallery's functions, which cannot be pickled

# The API reference

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings give types
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False  # the template of classes lists them, with their docstrings
numpydoc_use_plots = False
default_role = "py:obj"  # `best_of` is a link

# Pages

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "tensorly-flycoo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {"*": []}  # only the gallery and the API reference have pages below them
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_depth": 2,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# The gallery

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": site_gallery.RUN,
    "ignore_pattern": site_gallery.LEFT_OUT,
    "within_subsection_order": "site_gallery.Order",
    "image_scrapers": (site_gallery.take_pictures,),
    "reset_modules": (),
    "reset_argv": "site_gallery.give_arguments",
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,  # its page loads scripts from a CDN
    "default_thumb_file": site_gallery.draw_thumbnail(),
    "plot_gallery": "True",
}

#: Pages that are files of the repository outside of docs/, and how their links read there.
INCLUDED = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "tests": "tests/README.md",
    "kernels": "tensorly_flycoo/engines/cuda/kernels/README.md",
}
LINKS = {
    "(../docs/": "(",
    "(docs/": "(",
    "(tests/README.md": "(tests.md",
    "(support/lowered_limits.py)": "(../tests/support/lowered_limits.py)",
}


def include_file(app, docname, source):
    """Replace the text of a page by that of its file, with links that work from docs/."""
    if docname not in INCLUDED:
        return
    path = DOCS.parent / INCLUDED[docname]
    app.env.note_dependency(str(path))
    source[0] = path.read_text()
    for link, replacement in LINKS.items():
        source[0] = source[0].replace(link, replacement)


def find_elsewhere(app, env, node, contnode):
    """Link a function or class of another module, if its name is the only one of its kind."""
    names = [
        name
        for name, entry in env.domains["py"].objects.items()
        if name.endswith(f".{node['reftarget']}") and entry.objtype in ("function", "class")
    ]
    if node.get("reftype") != "obj" or len(names) != 1:
        return None
    node["reftarget"] = names[0]
    page = env.domains["py"]
    return page.resolve_xref(env, node["refdoc"], app.builder, "obj", names[0], node, contnode)


def setup(app):
    app.connect("missing-reference", find_elsewhere)
    app.connect("source-read", include_file)
