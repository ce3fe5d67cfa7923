"""Verifiable tasks: prompts with stable ids, a reward in TRL's signature, a held-out success rate."""

from viprl.tasks.arithmetic import ArithmeticTask
from viprl.tasks.base import Task, completion_text, prompt_text
from viprl.tasks.heldout import HeldOut, evaluate_heldout
from viprl.tasks.math import MathTask
from viprl.tasks.reasoning import ReasoningGymTask
from viprl.tasks.registry import TASKS, make_task

__all__ = [
    "TASKS",
    "ArithmeticTask",
    "HeldOut",
    "MathTask",
    "ReasoningGymTask",
    "Task",
    "completion_text",
    "evaluate_heldout",
    "make_task",
    "prompt_text",
]
