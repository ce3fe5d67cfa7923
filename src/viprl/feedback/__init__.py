"""What came back from a step: rewards read, predictions scored, realised variance guarded, outages kept out."""

from viprl.feedback.groups import GroupMoments, group_moments
from viprl.feedback.guard import Guard, GuardState
from viprl.feedback.lessons import AwaitedNorms, Lesson
from viprl.feedback.outage import OutageDetector
from viprl.feedback.record import FeedbackRecord
from viprl.feedback.rewards import Rewards, reached, read_rewards
from viprl.feedback.scores import PredictionScores

__all__ = [
    "AwaitedNorms",
    "FeedbackRecord",
    "GroupMoments",
    "Guard",
    "GuardState",
    "Lesson",
    "OutageDetector",
    "PredictionScores",
    "Rewards",
    "group_moments",
    "reached",
    "read_rewards",
]
