"""Values times c on the GPU, in every solver: see tests/conformance/test_scale.py."""

import cupy
import pytest
from scale_laws import LARGEST, VARIANTS, check_scale

pytestmark = pytest.mark.usefixtures("flycoo_on_a_gpu")


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("sign", [-1, 1])
def test_values_times_any_number(name, options, dtype, sign):
    check_scale(name, options, 10.0 ** (sign * LARGEST[dtype][0]), dtype, cupy)
