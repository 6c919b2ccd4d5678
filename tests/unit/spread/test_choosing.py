"""The layout that is chosen by default."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from numpy_devices import NumpyDevices
from problems import make_problem

from tensorly_flycoo import FlycooTensor, estimate_memory
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread.memory import TensorSizes, choose_common, choose_layout
from tensorly_flycoo.spread.slab_layout import SlabLayout
from tensorly_flycoo.tensor.coo_cache import as_flycoo

#: Shapes, nonzeros, dtypes, and what is chosen: "replicated" where copies are few or small.
CHOICES = [
    pytest.param((40, 30, 50), 500, "float32", "replicated", id="three modes"),
    pytest.param((40, 30, 50), 500, "float64", "replicated", id="three modes, float64"),
    pytest.param((2**21,) * 3, 500, "float64", "replicated", id="63 bits"),
    pytest.param((2**24,) * 3, 500, "float64", "indexed", id="72 bits"),
    pytest.param((40, 30, 50, 20), 500, "float32", "replicated", id="four modes, 8 bytes"),
    pytest.param((40, 30, 50, 20), 500, "float64", "indexed", id="four modes, 16 bytes"),
    pytest.param((16, 3, 105, 36, 20), 40_000, "float32", "replicated", id="two groups"),
    pytest.param((9,), 5, "float32", "replicated", id="one mode"),
    pytest.param((4, 5, 6, 7), 0, "float64", "replicated", id="no nonzeros"),
]
USUAL = pytest.mark.usual_limits("groups", "index", "prefixes", "record", "remap")


@USUAL
@pytest.mark.parametrize(("shape", "nnz", "dtype", "expected"), CHOICES)
def test_a_cpu_has_the_fastest_layout_in_the_memory_of_remapping(shape, nnz, dtype, expected):
    random, sizes = np.random.default_rng(0), {}
    coords, values = [random.integers(0, size, nnz) for size in shape], random.random(nnz)
    for layout in ("remap", "replicated", "indexed"):
        sizes[layout] = estimate_memory(shape, nnz, dtype=dtype, layout=layout).nbytes
    assert expected == ("replicated" if sizes["replicated"] <= sizes["remap"] else "indexed")
    for layout in (None, "auto"):
        x = FlycooTensor(coords, values, shape, dtype=dtype, layout=layout)
        assert x.layout == expected
        assert estimate_memory(shape, nnz, dtype=dtype, layout=layout).nbytes == sizes[expected]


def test_a_gpu_remaps_where_that_saves_a_copy():
    sizes, gpu = (500, (40, 30, 50), np.dtype("float32")), SimpleNamespace(name="cuda")
    assert choose_layout(gpu, "auto", TensorSizes(*sizes, ((0,), (1,), (2,)))) == "remap"
    joined = TensorSizes(*sizes, ((0, 1), (2,)))
    assert choose_layout(gpu, "auto", joined) == "replicated"
    for layout in ("remap", "indexed"):
        assert choose_layout(gpu, layout, joined) == layout


def test_slabs_have_the_layout_of_the_one_with_the_most_groups():
    """By the rule for one piece, though each numbers its own prefixes."""
    sizes = TensorSizes(500, (40, 30, 50), np.dtype("float32"), ((0,), (1,), (2,)))
    gpu, apart = SimpleNamespace(name="cuda"), CPU.choose_cut(*sizes[1:])
    numbered = CPU.choose_cut(*sizes[1:3], ((0, 1), (2,)), 60)
    assert choose_common(gpu, "auto", sizes, [numbered, numbered]) == "replicated"
    assert choose_common(gpu, "auto", sizes, [numbered, apart]) == "remap"
    assert choose_common(gpu, "indexed", sizes, [numbered, numbered]) == "indexed"


@pytest.mark.usual_limits("slabs")
def test_small_tensors_stay_on_one_of_all_devices(monkeypatch, caplog):
    devices, problem = NumpyDevices(3), make_problem((40, 30, 50), 500)
    monkeypatch.setattr(CPU, "devices", devices)
    assert problem.tensor().slabs == 3
    devices.least_nnz = 501
    with caplog.at_level("DEBUG", "tensorly_flycoo"):
        x = problem.tensor()
    assert "one of 3 devices is as fast for so few nonzeros" in caplog.text
    assert not isinstance(x._layout, SlabLayout)
    assert estimate_memory(x.shape, 500).nbytes <= x.nbytes * 1.2
    assert problem.tensor(slabs=3).slabs == 3


@pytest.mark.usual_limits("groups", "index", "prefixes", "record", "remap", "slabs")
def test_the_default_counts_numbered_prefixes():
    """Four modes of float64 are indexed; if three become one group, two copies suffice."""
    coords = np.stack(np.unravel_index(np.arange(2**16), (2, 16, 2, 2**10)))
    coords[:3] *= np.array([[1000], [60], [1000]])
    x = FlycooTensor(coords, np.ones(2**16), (1001, 1001, 1001, 2**10))
    assert (x.groups, x.layout) == (((0, 1, 2), (3,)), "replicated")
    assert FlycooTensor(coords, np.ones(2**16), x.shape, groups=None).layout == "indexed"


@USUAL
def test_tensors_made_of_others():
    """A COO that is converted has the default; what is made of a tensor has its layout."""
    coo = make_problem((4, 5, 3, 6), 60).tensor("remap").to_coo()
    assert as_flycoo(coo).layout == "indexed"
    x = FlycooTensor.from_coo(coo, layout="auto")
    for y in (2 * x, x[:3], x.sum(0), x.astype("float32"), pickle.loads(pickle.dumps(x))):
        assert y.layout == "indexed"


@pytest.mark.parametrize("layout", [None, "auto"])
def test_host_memory_is_for_sorted_copies(layout):
    problem = make_problem((4, 5, 3, 6), 60)
    assert problem.tensor(layout, keep="host").layout == "replicated"
    found, expected = (
        estimate_memory((4, 5, 3, 6), 60, layout=name, keep="host")
        for name in (layout, "replicated")
    )
    assert found == expected


def test_a_wrong_name():
    with pytest.raises(ValueError, match=r"layout is 'Auto', expected one of \('auto', 'remap', "):
        FlycooTensor([[0]], [1.0], (2,), layout="Auto")
