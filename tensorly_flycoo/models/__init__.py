"""From factors to an answer: choose, judge and use the CP model of a sparse tensor."""

from ..results.counts import CountFit
from ..results.coupled_cp import CoupledCP, LabelledCoupledCP
from ..results.cp_fit import CPFit, cp_fit
from ..results.fold_in import fold_in
from ..results.labelled_models import LabelledCP, LabelledParafac2, LabelledTucker
from ..results.recommend import evaluate, recommend
from .anomaly_scores import anomaly_scores
from .best_of import Starts, best_of
from .core_consistency import core_consistency
from .diagnose import diagnose
from .diagnosis import Diagnosis
from .estimator import FlycooCP
from .match import factor_match_score
from .rank_selection import RankScore, RankSelection
from .replicability import Replicability, replicability
from .select_rank import select_rank
from .uncertainty import Uncertainty, uncertainty

__all__ = [
    "CPFit",
    "CountFit",
    "CoupledCP",
    "Diagnosis",
    "FlycooCP",
    "LabelledCP",
    "LabelledCoupledCP",
    "LabelledParafac2",
    "LabelledTucker",
    "RankScore",
    "RankSelection",
    "Replicability",
    "Starts",
    "Uncertainty",
    "anomaly_scores",
    "best_of",
    "core_consistency",
    "cp_fit",
    "diagnose",
    "evaluate",
    "factor_match_score",
    "fold_in",
    "recommend",
    "replicability",
    "select_rank",
    "uncertainty",
]


def __dir__() -> list[str]:
    return __all__
