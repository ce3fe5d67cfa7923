"""Command line and environment of a CPU run of stock ``verl.trainer.main_ppo``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def overrides(folder: Path, model: Path, train: Path, val: Path, *, ranks: int = 1, steps: int = 3) -> list[str]:
    """Hydra overrides of a small run: 8 prompts a step, 32 rollouts, 8 response tokens."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        f"hydra.run.dir={folder}/hydra",
        "trainer.device=cpu",
        "ray_kwargs.ray_init.num_cpus=12",
        f"+ray_kwargs.ray_init.num_gpus={ranks}",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"data.train_files={train}",
        f"data.val_files={val}",
        "data.train_batch_size=8",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "data.dataloader_num_workers=0",
        "data.filter_overlong_prompts=False",
        "data.seed=7",
        "algorithm.use_kl_in_reward=False",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{actor}.strategy=fsdp2",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"{actor}.fsdp_config.model_dtype=fp32",
        f"+{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        f"{actor}.ppo_mini_batch_size=8",
        f"{actor}.ppo_micro_batch_size_per_gpu=8",
        f"{actor}.use_kl_loss=False",
        f"{actor}.loss_agg_mode=seq-mean-token-mean",
        f"{actor}.optim.lr=1e-3",
        f"{rollout}.name=hf_cpu",
        f"{rollout}.n=4",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.agent.default_agent_loop=seeded_single_turn",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=8",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.load_format=auto",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={Path(__file__).with_name('rewards.py')}",
        "reward.custom_reward_function.name=compute_score",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.nnodes=1",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.total_epochs=50",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}/checkpoints",
    ]


@dataclass
class Run:
    """One launch of main_ppo in a folder; the folder keeps its records, metrics, checkpoints and log.

    Attributes:
        folder: made if absent.
        arguments: all overrides.
        environment: added to the process environment.
    """

    folder: Path
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def record(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "run.log"

    def start(self) -> Run:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *self.arguments]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment(), cwd=self.folder, start_new_session=True
            )
        return self

    def wait(self, seconds: float) -> int:
        """Exit status; the run is stopped with TimeoutError when it takes longer."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise TimeoutError(f"{self.folder} ran longer than {seconds} s:\n{self.tail()}") from None

    def wait_for(self, path: Path, seconds: float) -> None:
        """Wait until a file is there, or the run ends."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(f"{path} did not appear:\n{self.tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGKILL for everything of this run: its own session, never anything by name."""
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def tail(self, characters: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def _environment(self) -> dict[str, str]:
        # Ray's sockets need short paths; its token and caches must stay out of the user's home.
        home = tempfile.mkdtemp(prefix="vc", dir="/tmp")
        given = {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "HOME": home,
            "RAY_TMPDIR": home,
            "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",
            "VERL_CPU_RECORD": str(self.record),
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
            "OMP_NUM_THREADS": "1",
            "RAY_DEDUP_LOGS": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray would start one idle Python process per (named) CPU
            "RAY_prestart_worker_first_driver": "0",
            "RAY_enable_worker_prestart": "0",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HYDRA_FULL_ERROR": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **self.environment,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "VERL_"))}
        return {**kept, **given}
