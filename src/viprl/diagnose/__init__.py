"""Does the variance formula hold for your model? Assumption tests, effect sizes and a verdict."""

from viprl.diagnose.hypotheses import TestResult, edgington, fisher, levene, obrien, pearson, variance_ratio
from viprl.diagnose.report import AssumptionReport, Ratio, diagnose, explain

__all__ = [
    "AssumptionReport",
    "Ratio",
    "TestResult",
    "diagnose",
    "edgington",
    "explain",
    "fisher",
    "levene",
    "obrien",
    "pearson",
    "variance_ratio",
]
