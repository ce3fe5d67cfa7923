"""The training job: configuration, runs, report."""

from viprl.training.config import TrainConfig, load_config
from viprl.training.job import JobResult, run_job

__all__ = ["JobResult", "TrainConfig", "load_config", "run_job"]
