"""Make TensorLy know the backend "flycoo"."""

import os
import sys

_VARIABLE = "TENSORLY_BACKEND"


def register():
    """Register the backend and the hooks; set the backend if the environment asks for it.

    TensorLy reads TENSORLY_BACKEND when it is imported, before it could know of any plugin, and
    would warn about a name that it does not know. So the variable is hidden while it is imported
    here, and acted upon afterwards, also where TensorLy was imported earlier.
    """
    asked_for = os.environ.get(_VARIABLE) == "flycoo"
    if asked_for and "tensorly" not in sys.modules:
        del os.environ[_VARIABLE]
        try:
            import tensorly
        finally:
            os.environ[_VARIABLE] = "flycoo"
    import tensorly
    from tensorly.backend import BackendManager

    from . import arrays  # noqa: F401 (the class registers itself with TensorLy)
    from .hooks import install_hooks

    if "flycoo" not in BackendManager.available_backend_names:
        BackendManager.available_backend_names.append("flycoo")
    install_hooks()
    if asked_for:
        tensorly.set_backend("flycoo")
