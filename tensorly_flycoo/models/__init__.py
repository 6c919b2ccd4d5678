"""From factors to an answer: choose, judge and use the CP model of a sparse tensor.

What concerns one model, such as `LabelledCP`, is in `decomposition`, which makes them.
"""

from ..decomposition.cp_fit import CPFit, cp_fit
from ..decomposition.fold_in import fold_in
from ..decomposition.labelled_cp import LabelledCP
from .estimator import FlycooCP

__all__ = ["CPFit", "FlycooCP", "LabelledCP", "cp_fit", "fold_in"]
