"""The code of README and of the pages in docs/ runs as it is printed.

The blocks of a page run in order in one namespace, in an empty folder. What a page takes from its
reader, such as a table or a file, is made here: small, and under the name that the page uses.
"""

import contextlib
import logging
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    command_line,
    from_dataframe,
    write_tns,
)
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.testing import random_tensor

ROOT = Path(__file__).parent.parent

#: What a page says above a block that cannot run here, with the reason.
NOT_RUN = re.compile(r"^<!-- not run by tests: [^\n]* -->\n```python\n.*?^```$", re.M | re.S)

#: Commands of shell blocks that are not tried: what they begin with, and why.
COMMANDS_LEFT_OUT = {
    "python3 -m venv": "makes an environment; CI runs README's",
    "source .venv": "uses an environment",
    "pip install": "changes the environment",
    "python -m sphinx": "tests/test_site.py builds the site",
    "python -m pytest": "needs a GPU",
    "pytest": "runs other tests",
    "python -m tensorly_flycoo run": "unit/command_line/test_run.py runs scripts",
    "python -m tensorly_flycoo autoload": "changes the environment",
    "TENSORLY_BACKEND=flycoo python": "needs autoload",
}


def list_blocks(page, language, with_left_out=True):
    """List the blocks of a page, without their fences."""
    text = (ROOT / page).read_text()
    if not with_left_out:
        text = NOT_RUN.sub("", text)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


PAGES = ["README.md", "CONTRIBUTING.md"] + [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))
]


def give_nothing():
    return {}


def give_counts():
    """Return counts of users x items x days, drawn from a model of three components."""
    random = np.random.RandomState(0)
    factors = [random.gamma(0.3, size=(size, 3)) for size in (20, 15, 25)]
    dense = random.poisson(tl.cp_to_tensor((None, factors))).astype(float)
    counts = FlycooTensor.from_dense(dense)
    return {
        "counts": counts,
        "new_counts": counts,
        "new_rows": FlycooTensor.from_dense(dense[:4]),
        "first_days": FlycooTensor.from_dense(dense[..., :20]),
        "new_days": FlycooTensor.from_dense(dense[..., 20:]),
    }


def give_slabs():
    """Return what the page's first block, which is left out, defines, and make two files."""
    tl.set_backend("flycoo")
    x = random_tensor((60, 50, 40), 2000, random_state=0)
    coords, values = x.nonzeros()
    Path("shared").mkdir()
    write_tns("part.tns", x)
    tensorly_flycoo.save_slabs("shared/reddit.flycoo", ["part.tns"])
    return {
        "coords": coords,
        "values": values,
        "shape": x.shape,
        "tl": tl,
        "paths_of_tns_or_parquet_files": ["part.tns"],
        "FlycooTensor": FlycooTensor,
    }


def give_formula():
    M, B, C = np.zeros((2, 3)), np.ones((4, 3)), np.ones((5, 3))
    given = {"M": M, "B": B, "C": C, "i": 1, "j": 2, "k": 3, "v": 2.0}
    return given | {"a": 1, "T": np.ones((2, 4, 3))}


def give_tensor():
    """Return the tensor whose decomposition is watched."""
    return {"x": random_tensor((60, 50, 40), 2000, random_state=0)}


def give_ratings():
    """Return ratings of films by month, rows to predict, ratings held out, of new users; clicks."""
    import recommending

    table = recommending.draw_ratings(3000, num_users=60, num_films=40)
    ratings, held_out = table[:-200], table[-200:]
    is_known = held_out["user"].isin(ratings["user"]) & held_out["film"].isin(ratings["film"])
    of_one = ratings[ratings["user"] == 3]
    return {
        "ratings": ratings,
        "new": of_one,
        "liked": held_out[is_known & (held_out["stars"] >= 4)],
        "newcomers": of_one.assign(user=999),
        "clicks": ratings[["user", "film"]],
    }


def give_tables():
    """Return a table of events, and one of ratings."""
    ratings = give_ratings()["ratings"].rename(columns={"film": "item"})
    return {"events": ratings.rename(columns={"month": "day"}), "ratings": ratings}


def give_three_tables():
    """Return events, levels of genes of which blocks were not measured, and ratings."""
    import pandas as pd

    days = pd.DataFrame({"carrier": ["AA", "UA", "UA"], "day": [1, 1, 2]})
    names = ["gene", "donor", "type"]
    cells = pd.DataFrame(np.argwhere(np.ones((5, 4, 3))), columns=names).assign(level=1.5)
    lacks_type = (cells["donor"] == 1) & (cells["type"] == 2)
    return {"flights": days, "cells": cells[~lacks_type], **give_ratings()}


def give_log():
    """Return what sensors measured by day and hour, what they missed, and spectra as an array."""
    import pandas as pd
    import xarray

    random = np.random.RandomState(0)
    factors = [random.gamma(0.3, size=(size, 2)) for size in (10, 15, 8)]
    levels = tl.cp_to_tensor((None, factors)) * random.lognormal(0, 0.1, (10, 15, 8))
    table = pd.DataFrame(np.argwhere(levels), columns=["sensor", "day", "hour"])
    table["level"] = levels.ravel()
    was_on = random.random_sample((10, 15)) < 0.8
    is_row = was_on[table["sensor"], table["day"]]
    is_scattered = np.arange(15)[:, None] < np.arange(8)
    return {
        "log": table[is_row],
        "lost": table[~is_row],
        "new_log": table[is_row & (table["sensor"] == 3)].assign(sensor=99),
        "eems": xarray.DataArray(
            np.where(is_scattered, np.nan, levels), dims=["sample", "emission", "excitation"]
        ),
    }


def give_triples():
    """Return a graph of three relations between groups of terms, and triples held out of it."""
    import pandas as pd

    terms = ["virus", *(f"term {number}" for number in range(23))]
    relations = ["affects", "causes", "is part of"]
    triples = pd.DataFrame(
        [
            (head, relation, tail)
            for number, relation in enumerate(relations)
            for head in terms[number::3]
            for tail in terms[(number + 1) % 3 :: 3]
        ],
        columns=["head", "relation", "tail"],
    ).replace({"affects": "causes", "causes": "affects"})
    is_out = np.random.RandomState(0).random_sample(len(triples)) < 0.1
    return {"triples": triples[~is_out], "validation": triples[is_out]}


def give_file():
    """Make a file of nonzeros, and return a table of visits."""
    import pandas as pd

    write_tns("nell-2.tns.gz", random_tensor((60, 50, 40), 2000, random_state=0))
    # At each visit another code: slices of a PARAFAC2 model, which few iterations find.
    patients, visits = np.indices((6, 10)).reshape(2, -1)
    codes = (patients + visits) % 10
    return {"df": pd.DataFrame({"patient": patients, "visit": visits, "code": codes})}


def give_parquet():
    import pandas as pd

    Path("shared/reddit").mkdir(parents=True)
    coords, values = random_tensor((60, 50, 40), 2000, random_state=0).nonzeros()
    table = pd.DataFrame(dict(zip(["user", "sub", "word"], coords, strict=True)), dtype=object)
    table.assign(n=values).to_parquet("shared/reddit/part.parquet")
    return {}


def give_cells():
    """Return a table as LIANA writes it, and what is read and written of two AnnDatas."""
    import communication
    import pandas as pd
    import scipy.sparse

    random = np.random.RandomState(0)
    table = communication.make_table(*communication.plant_programs(random), random)
    obs = pd.DataFrame(
        {"condition": ["drug", "none"] * 30, "type": ["B", "T", "NK"] * 20},
        [f"cell {n}" for n in range(60)],
    )
    X = scipy.sparse.random_array((60, 30), density=0.4, rng=0).tocsr()
    adata = SimpleNamespace(
        X=X, layers={}, obsm={}, varm={}, uns={}, obs=obs, obs_names=obs.index,
        var_names=[f"gene {n}" for n in range(30)],
    )  # fmt: skip
    return {"liana_res": table, "adata": adata, "new_cells": SimpleNamespace(X=X[:5])}


#: What the reader has, for each page whose code takes something.
STAND_INS = {
    "docs/clusters.md": give_parquet,
    "docs/counts.md": give_counts,
    "docs/gaps.md": give_log,
    "docs/graphs.md": give_triples,
    "docs/how_it_works.md": give_formula,
    "docs/iterations.md": give_tensor,
    "docs/larger.md": give_slabs,
    "docs/missing.md": give_three_tables,
    "docs/ratings.md": give_ratings,
    "docs/single_cell.md": give_cells,
    "docs/tables.md": give_tables,
    "docs/uses.md": give_file,
}
#: Their cluster is that of all tests, and what all workers see is in the test's own folder.
NEED_CLUSTER = {"docs/larger.md", "docs/clusters.md"}
#: Numbers that run as they are printed in README alone, and what is run of them in other pages.
SMALLER = {
    "docs/uses.md": {"(10_000, 20_000, 30_000), nnz=1_000_000": "(1_000, 2_000, 3_000), nnz=50_000"}
}


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    device = os.environ["TENSORLY_FLYCOO_DEVICE"]  # which a page may change
    with tl.backend_context(tl.get_backend()), tensorly_flycoo.set_device(device):
        yield
    logging.getLogger("tensorly_flycoo").setLevel(logging.NOTSET)  # a page sets it


@pytest.fixture(scope="module")
def searches():
    """What searches of tensors with labels have found in this module."""
    return {}


@pytest.fixture
def each_search_once(searches, monkeypatch):
    """Give pages that print the same search of the flights for a rank the same results."""
    select_rank = tensorly_flycoo.select_rank

    def search(x, *arguments, **options):
        if not isinstance(x, LabelledTensor):
            return select_rank(x, *arguments, **options)
        key = str((find_digest(x.tensor), [*x.labels], arguments, options))
        if key not in searches:
            searches[key] = select_rank(x, *arguments, **options)
        return searches[key]

    monkeypatch.setattr(tensorly_flycoo, "select_rank", search)


@pytest.mark.parametrize("page", [page for page in PAGES if list_blocks(page, "python")])
@pytest.mark.usefixtures("each_search_once")
def test_python(page, tmp_path, request):
    namespace = STAND_INS.get(page, give_nothing)()
    places = {'"/shared': f'"{tmp_path}/shared'} | SMALLER.get(page, {})
    with contextlib.ExitStack() as stack:
        if page in NEED_CLUSTER:
            address = request.getfixturevalue("client").scheduler.address
            places |= {"tcp://scheduler:8786": address, "tcp://10.0.0.1:8786": address}
        for number, block in enumerate(list_blocks(page, "python", with_left_out=False)):
            for place, other in places.items():
                block = block.replace(place, other)
            exec(compile(block, f"{page}, block {number}", "exec"), namespace)
            if page == "README.md" and number == 0:  # its first screen shows what it prints
                (printed,) = list_blocks(page, "text")
                assert namespace["starts"].best.describe(3).strip() == printed.strip()
            if client := namespace.pop("client", None):
                stack.callback(client.close)
                if client.cluster:
                    stack.callback(client.cluster.close)
    if "starts" in namespace and "flights" in namespace:
        assert namespace["starts"].match > 0.95  # the text calls the model trustworthy


def test_text_that_is_written_is_read_back():
    """Every bit, also of numbers with the longest texts and of the last rows, if empty."""
    (block,) = (block for block in list_blocks("docs/uses.md", "python") if "write_tns(" in block)
    numbers = [0.1, -1 / 3, 5e-324, 1e300 / 7, np.float32(0.1), 2.0**53 - 1]
    x = FlycooTensor([range(6), [2**20 - 1] * 6], numbers, (9, 2**20))
    exec(block, {"x": x})
    y = tensorly_flycoo.read_tns("x.tns.gz")
    assert y.shape == x.shape
    for array, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)


def write_tables():
    """Make the files that the commands of the pages read."""
    import pandas as pd

    random = np.random.RandomState(0)
    users, items, days = random.randint(0, 8, (3, 300))
    table = pd.DataFrame({"user": users, "item": items, "day": days}).astype(str)
    table["time"] = pd.date_range("2024-01-01", periods=300, freq="h")
    table.to_parquet("events.parquet")
    table.to_csv("events.csv")
    ratings = table.assign(film=table["item"], stars=1 + days % 5)
    ratings.to_csv("ratings.csv")
    ratings.head().to_csv("new.csv")
    numbers = ratings.astype({"user": int, "film": int})  # which they are in a .csv
    write_model("ratings_rank5", numbers, ["user", "film"])
    days = table.assign(**{"time:day": table["time"].dt.floor("D")})
    write_model("events_rank8", days, ["user", "item", "time:day"])
    give_file()


def write_model(folder, table, modes):
    """Save a model of the labels of a table as the command "fit" does."""
    x = from_dataframe(table, modes)
    model = (None, [np.random.RandomState(0).rand(size, 2) for size in x.shape])
    Path(folder).mkdir()
    LabelledCP(model, x.labels).save(f"{folder}/model.npz")


def run_page(page, last=None, **given):
    """Run the blocks of a page, and return what they define.

    With `last`, stop after the first block with that text, which is run even if it is left out.
    """
    namespace = STAND_INS[page]() | given
    for block in list_blocks(page, "python", with_left_out=last is not None):
        exec(block, namespace)
        if last is not None and last in block:
            break
    return namespace


def make_anndata():
    given = give_cells()["adata"]
    adata = pytest.importorskip("anndata").AnnData(given.X, given.obs)
    adata.var_names = given.var_names
    return adata


def test_anndata(tmp_path):
    """A file has what the page puts into an AnnData."""
    adata = make_anndata()
    run_page("docs/single_cell.md", adata=adata)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    found = pytest.importorskip("anndata").read_h5ad(tmp_path / "cells.h5ad")
    assert found.obsm["pf2"].equals(adata.obsm["pf2"])
    assert [*found.varm["cp"].index] == [*adata.var_names]
    assert [*found.uns["cp"]["type"].index] == ["B", "NK", "T"]


def test_store_pf2():
    """What another package stores of the model is what the page stores."""
    store_pf2 = pytest.importorskip("parafac2").parafac2.store_pf2
    adata = make_anndata()
    model = run_page("docs/single_cell.md", adata=adata)["model"]
    adata.obs["condition_unique_idxs"] = (adata.obs["condition"] == "none").astype(int)
    store_pf2(adata, model)
    rows = adata.obsm["weighted_projections"]  # float32
    np.testing.assert_allclose(rows, adata.obsm["pf2"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(adata.uns["Pf2_A"], adata.uns["pf2"])


def test_cell2cell():
    """Its plots take the factors, and what LIANA makes for it has the entries of our tensor."""
    pytest.importorskip("cell2cell")
    given = run_page("docs/single_cell.md", last="import cell2cell")
    to_tensor = pytest.importorskip("liana.multi").to_tensor_c2c
    options = {"inverse_fun": lambda ranks: 1 - ranks, "how": "outer"}
    theirs = to_tensor(
        liana_res=given["liana_res"], sample_key="sample", score_key="magnitude_rank", **options
    )
    x, mask = given["x"], np.asarray(theirs.mask)
    order = np.ix_(*(
        [list(of).index(name) for name in names]
        for of, names in zip(x.labels.values(), theirs.order_names, strict=True)
    ))  # fmt: skip
    ours = x.tensor.to_coo().todense()[order]
    np.testing.assert_array_equal(ours != 0, mask == 1)
    np.testing.assert_allclose(ours, np.where(mask, theirs.tensor, 0), atol=1e-15)


COMMANDS = [
    (page, line.partition("#")[0].strip())
    for page in PAGES
    for block in list_blocks(page, "sh")
    for line in block.replace("\\\n", "").splitlines()
    if not line.startswith(tuple(COMMANDS_LEFT_OUT))
] + [
    (page, command)
    for page in PAGES
    for command in re.findall(r"`(python -m tensorly_flycoo fit [^`]+)`", (ROOT / page).read_text())
    if "." in command  # names a file
]


@pytest.mark.parametrize(("page", "command"), dict.fromkeys(COMMANDS))
def test_commands(page, command, monkeypatch, capsys):
    """Commands in blocks of their own, and those of a sentence that make a model of a file."""
    write_tables()
    program, *arguments = shlex.split(command)
    if arguments[:2] == ["-m", "tensorly_flycoo"]:
        assert command_line.main(arguments[2:]) == 0
    else:
        assert program == "python"
        check_script(*arguments)


def check_script(path, *arguments):
    """Check that a script exists, and that it or its folder mentions the options."""
    script = ROOT / path
    files = [script, *script.parent.glob("*.py")] if script.is_file() else script.glob("*.py")
    text = "".join(file.read_text() for file in files)
    assert text
    for argument in arguments:
        if argument.startswith("--"):
            assert f'"{argument}"' in text, argument


SCRIPTS = sorted({
    " ".join(command.split())
    for text in map(Path.read_text, [*map(ROOT.joinpath, PAGES), ROOT / "tests/README.md"])
    for command in re.findall(r"`python\s+((?:examples|tests|docs)/[^`]*)`", text)
})  # fmt: skip


@pytest.mark.parametrize("command", SCRIPTS)
def test_scripts_exist_and_take_the_options(command):
    """Commands in the text, which may take hours."""
    check_script(*shlex.split(command))


def test_each_published_example_runs_in_a_test():
    """A test imports its module or names its file; those of `benchmark_gpu` in tests/gpu."""
    files = [*(ROOT / "tests/examples").glob("*.py"), *(ROOT / "tests/gpu").glob("test_*.py")]
    tests = "".join(map(Path.read_text, files))
    published = {*SCRIPTS, *(command.partition(" ")[2] for _, command in COMMANDS)}
    programs = {command.partition(" ")[0] for command in published}
    programs |= {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py")}
    for path in programs:
        if path.startswith("examples/") and path != "examples/wheels.py":  # which is no program
            assert re.search(rf"\b{Path(path).stem}\b", tests), path


#: Pages for users that are records or lists.
WITHOUT_CODE = {"gallery/index", "performance", "api", "measurements", "history"}


def test_pages_for_users_begin_with_what_one_types():
    """Code stands in their first lines."""
    listed = re.search(r":caption: Use\n\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.S)[1]
    pages = {re.sub(r".*<(.*)>", r"\1", line) for line in listed.split("\n") if line}
    assert pages > WITHOUT_CODE
    for page in pages - WITHOUT_CODE:
        first_lines = (ROOT / f"docs/{page}.md").read_text().split("\n")[:15]
        assert any(line.startswith("```") for line in first_lines), page


@pytest.mark.parametrize(("page", "limit"), [("answer", 1800), ("uses", 1500), ("counts", 1500)])
def test_pages_stay_short(page, limit):
    assert len((ROOT / f"docs/{page}.md").read_text().split()) <= limit


def test_each_reason_is_right_above_a_block():
    """Else the block would be run."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert text.count("<!-- not run by tests: ") == len(NOT_RUN.findall(text)), page


def test_each_promise_of_accuracy_names_its_test():
    """Each row of the first table ends with tests that exist."""
    table = (ROOT / "docs/accuracy.md").read_text().split("## The bits")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row.split("|")[-2])
        assert named, row
        for path, function in named:
            assert not function or f"def {function}(" in (ROOT / path).read_text(), (path, function)
            assert (ROOT / path).exists(), path
