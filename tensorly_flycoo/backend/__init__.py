"""The seam with TensorLy: the only room that changes anything there."""

import os
import warnings

with warnings.catch_warnings():
    # TensorLy reads TENSORLY_BACKEND on its first import, before it can know of a plugin's backend.
    warnings.filterwarnings("ignore", message="TENSORLY_BACKEND should be one of")
    import tensorly
from tensorly.backend import BackendManager

from . import arrays  # noqa: F401 (the class registers itself with TensorLy)
from .replacements import install_replacements
from .tensor_algebra import install_hooks


def register() -> None:
    """Add the backend, the hooks and the replacements to TensorLy.

    Set the backend if the environment variable TENSORLY_BACKEND asks for it. Calling this again
    changes nothing, but restores what reloading one of TensorLy's modules has undone.
    """
    if "flycoo" not in BackendManager.available_backend_names:
        BackendManager.available_backend_names.append("flycoo")
    install_hooks()
    install_replacements()
    if os.environ.get("TENSORLY_BACKEND") == "flycoo":
        tensorly.set_backend("flycoo")
