"""Files and tables of tensors on a GPU."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo import (
    FlycooTensor,
    load,
    mttkrp,
    open_slabs,
    read_tns,
    save,
    save_slabs,
    stats,
    write_tns,
)
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.spread import building, whole_layout

SHAPE = (300, 3, 5000)


def make_tensor(device, layout="remap"):
    random = np.random.default_rng(0)
    coords = np.stack([random.integers(0, size, 50_000) for size in SHAPE])
    return FlycooTensor(coords, random.standard_normal(50_000), SHAPE, layout=layout, device=device)


def compute_all(x):
    factors = [np.random.default_rng(1).standard_normal((size, 8)) for size in x.shape]
    factors = factors if x.device == "cpu" else [cupy.asarray(factor) for factor in factors]
    results = [mttkrp(x, factors, mode) for mode in range(x.ndim)]
    return [result if x.device == "cpu" else result.get() for result in results]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("saved_on", ["cpu", "cuda"])
@pytest.mark.parametrize("loaded_on", ["cpu", "cuda"])
def test_saved_on_one_device_and_loaded_on_another(
    tmp_path, layout, saved_on, loaded_on, monkeypatch
):
    save(tmp_path / "x.npz", make_tensor(saved_on, layout))
    expected = compute_all(make_tensor(loaded_on, layout))
    if saved_on == loaded_on and layout != "remap":  # a plan that fits is not built again
        monkeypatch.delattr(whole_layout, "build_in_slabs")
    x = load(tmp_path / "x.npz", device=loaded_on)
    assert (x.device, x.layout) == (loaded_on, layout)
    for result, same in zip(compute_all(x), expected, strict=True):
        np.testing.assert_array_equal(result, same)


def test_text(tmp_path):
    x = make_tensor("cuda")
    write_tns(tmp_path / "x.tns.gz", x)
    y = read_tns(tmp_path / "x.tns.gz", device="cuda")
    assert y.device == "cuda"
    for array, same in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, same)


def test_dense_and_stats():
    dense = cupy.asarray(np.random.default_rng(0).integers(0, 2, (5, 6, 7)))
    x = FlycooTensor.from_dense(dense)
    assert x.device == "cuda"
    np.testing.assert_array_equal(x.to_coo().todense(), dense.get())
    assert stats(x).modes == stats(x.to_coo()).modes


@pytest.mark.parametrize("keep", ["device", "host", "file"])
def test_a_folder_of_slabs(tmp_path, keep):
    x = make_tensor("cuda")
    save_slabs(tmp_path / "x.flycoo", x, slabs=5, device="cuda")
    expected = FlycooTensor(*x.nonzeros(), SHAPE, layout="replicated", device="cuda", slabs=5)
    y = open_slabs(tmp_path / "x.flycoo", device="cuda", keep=keep, verify=True)
    assert y._layout.num_streamed == (0 if keep == "device" else 5)
    for _ in range(2):
        for result, same in zip(compute_all(y), compute_all(expected), strict=True):
            np.testing.assert_array_equal(result, same)


def test_a_folder_is_built_on_the_gpu(tmp_path, monkeypatch):
    """The host counts no rows, and cuts no bucket."""
    found = []

    def watch(module, name):
        function = getattr(module, name)

        def call(array, *options):
            found.append((name, type(array)))
            return function(array, *options)

        monkeypatch.setattr(module, name, call)

    watch(building, "find_edges")  # of the counts
    watch(building, "take_rows")
    watch(slab_folder, "split_records")
    save_slabs(tmp_path / "x.flycoo", make_tensor("cpu"), slabs=5, device="cuda")
    names = {"find_edges", "take_rows", "split_records"}
    assert set(found) == {(name, cupy.ndarray) for name in names}


def test_a_folder_made_for_another_device(tmp_path):
    x = make_tensor("cpu")
    save_slabs(tmp_path / "x.flycoo", x, slabs=5, device="cpu")
    with pytest.raises(ValueError, match="has a plan for another kind of device"):
        open_slabs(tmp_path / "x.flycoo", device="cuda", keep="file")
    expected = FlycooTensor(*x.nonzeros(), SHAPE, layout="replicated", device="cuda", slabs=5)
    y = open_slabs(tmp_path / "x.flycoo", device="cuda")
    for result, same in zip(compute_all(y), compute_all(expected), strict=True):
        np.testing.assert_array_equal(result, same)
