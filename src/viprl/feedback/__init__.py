"""What came back from a step: rewards read, predictions scored, realised variance guarded, outages kept out."""

from viprl.feedback.guard import Guard, GuardState
from viprl.feedback.outage import OutageDetector
from viprl.feedback.rewards import Rewards, read_rewards
from viprl.feedback.scores import PredictionScores

__all__ = ["Guard", "GuardState", "OutageDetector", "PredictionScores", "Rewards", "read_rewards"]
