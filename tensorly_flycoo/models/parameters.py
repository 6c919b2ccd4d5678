"""The parameters of an estimator in scikit-learn's style."""

import inspect
from typing import Any, Self


class Parameters:
    """An estimator whose constructor only stores its parameters, so that they can be read and set.

    Subclasses have `sklearn.base.clone` work on them without importing scikit-learn.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and return the estimator.

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}, expected one of {[*known]}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({params})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))
