"""Step 1: prompt -> posterior of its success probability."""

from viprl.prediction.base import Prediction, Predictor
from viprl.prediction.baselines import DiscountedBeta, GlobalMean, LastRate
from viprl.prediction.calibrated import CalibratedPredictor
from viprl.prediction.gaussian_process import GaussianProcessPredictor
from viprl.prediction.recent import MovingAverage, Ridge
from viprl.prediction.reward_variance import RewardVariancePredictor

__all__ = [
    "CalibratedPredictor",
    "DiscountedBeta",
    "GaussianProcessPredictor",
    "GlobalMean",
    "LastRate",
    "MovingAverage",
    "Prediction",
    "Predictor",
    "RewardVariancePredictor",
    "Ridge",
]
