"""What a decomposition holds is freed when it returns: nothing waits for the garbage collector.

A GPU's memory would wait with it, and the collector does not know how large that is.
"""

import gc
import weakref

import pytest
from model_table import KINDS, fit, label, make_mask, make_values

from tensorly_flycoo.loop.recorded_sweep import RecordedSweep


def decompose(kind):
    """Decompose a tensor that nobody else has; return weak references to it and to its layout."""
    x = label(make_values(kind.data, kind.ndim))
    mask = make_mask(kind.mask) if kind.mask else None
    model = fit(kind, x, mask, n_iter_max=2)
    return model, [weakref.ref(x.tensor), weakref.ref(x.tensor._layout)]


@pytest.mark.parametrize("id", [id for id, kind in KINDS.items() if not kind.rebuilt])
def test_only_the_model_is_left(id, monkeypatch):
    """Also where a GPU would record later iterations."""
    monkeypatch.setattr(RecordedSweep, "suits", lambda *_: True)
    decompose(KINDS[id])  # numba compiles, and leaves cycles
    gc.collect()
    gc.disable()
    try:
        model, of_tensor = decompose(KINDS[id])
        assert [reference() for reference in of_tensor] == [None, None]
        of_model = weakref.ref(model)
        del model
        assert of_model() is None
    finally:
        gc.enable()
