"""Conformance suites: what viprl expects of a predictor, a variance model, a policy or a solver, as tests.

Subclass a suite under a name that your test runner collects, say how to make your object, and run it:

    from viprl.testing import PredictorConformance

    class TestMyPredictor(PredictorConformance):
        def make(self):
            return MyPredictor(prompt_ids=self.prompt_ids)

Every ``test_*`` method then checks one promise. The suites need nothing but numpy; any runner that collects classes
with ``test_*`` methods will do (pytest, for one).
"""

from viprl.testing.policies import PolicyConformance
from viprl.testing.predictors import PredictorConformance
from viprl.testing.solvers import SolverConformance
from viprl.testing.variance_models import VarianceModelConformance

__all__ = ["PolicyConformance", "PredictorConformance", "SolverConformance", "VarianceModelConformance"]
