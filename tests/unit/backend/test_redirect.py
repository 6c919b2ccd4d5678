"""What is bound to a function goes where the function is sent."""

import functools
import inspect
import pickle
from collections import Counter

import tensorly as tl

from tensorly_flycoo.backend import hooking, hooks, refusals
from tensorly_flycoo.backend.redirect import redirect


def scale(x, factor=2, *, offset=1):
    """Scale and shift."""
    return factor * x + offset


def test_redirect():
    bound_before, signature = scale, inspect.signature(scale)
    assert scale(3) == 7
    for _ in range(2):  # the second time changes nothing
        redirect(scale, lambda original: lambda *args, **kwargs: -original(*args, **kwargs))
    assert bound_before is scale
    assert (scale(3), scale(3, 3), scale(3, factor=3, offset=0)) == (-7, -10, -9)
    assert inspect.signature(scale) == signature
    assert inspect.getfullargspec(scale).args == ["x", "factor"]
    assert scale.__doc__ == "Scale and shift."
    assert scale.__name__ == "scale"


def test_the_first_of_two_stays():
    def double(x):
        return 2 * x

    redirect(double, lambda original: lambda x: original(x) + 1)
    redirect(double, lambda original: lambda x: original(x) + 2)
    assert double(3) == 7


def test_no_function_of_tensorly_is_given_two(monkeypatch):
    """Of which one would be dropped: under another name, or as one that is and is not refused."""
    places = Counter()
    for module in (hooking, refusals):
        monkeypatch.setattr(
            module, "redirect", lambda function, make: places.update([inspect.unwrap(function)])
        )
    hooks.install_hooks()
    refusals.install_refusals("tensorly.contrib.decomposition")
    assert len(places) > 80
    assert [function for function, count in places.items() if count > 1] == []


def test_redirect_below_a_hook():
    def add_one(x):
        return x + 1

    @functools.wraps(add_one)
    def hook(x):
        return 10 * add_one(x)

    hook._flycoo_hook = True
    redirect(hook, lambda original: lambda x: -original(x))
    assert (add_one(1), hook(1)) == (-2, -20)


def test_functions_of_tensorly_keep_name_signature_and_pickle():
    function = tl.decomposition.tensor_train
    assert pickle.loads(pickle.dumps(function)) is function
    assert list(inspect.signature(function).parameters)[:2] == ["input_tensor", "rank"]
