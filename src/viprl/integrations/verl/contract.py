"""What of verl this integration overrides or relies on, with its shape in the tested versions.

``drift()`` says what has moved. It is the first thing to read when a new verl release breaks a run.
"""

from __future__ import annotations

import importlib
import inspect

VERL_TESTED = ("0.9.1",)
VERL_RANGE = ">=0.9.1,<0.10"
TRANSFORMERS_BELOW = "5.11"
TRANSFER_QUEUE_FROM = "0.1.10"
REQUIRED = (
    "ray",
    "tensordict",
    "omegaconf",
    "hydra",
    "transfer_queue",
    "cachetools",
    "fastapi",
    "uvicorn",
    "zmq",
    "msgspec",
)

_V1 = "verl.trainer.ppo.v1"
_BASE = f"{_V1}.trainer_base:PPOTrainer"

# object -> its parameters, as verl 0.9.1 names them
SIGNATURES: dict[str, tuple[str, ...]] = {
    f"{_BASE}.__init__": ("self", "config"),
    f"{_BASE}._init_dataloader": ("self",),
    f"{_BASE}._next_train_batch": ("self", "num_prompts"),
    f"{_BASE}._submit_batch_to_rollout": ("self", "batch"),
    f"{_BASE}.step": ("self", "metrics", "timing_raw"),
    f"{_BASE}._step_once": ("self", "metrics", "timing_raw", "sample_batch_size"),
    f"{_BASE}._balance_batch": ("self", "batch", "metrics", "logging_prefix", "keep_minibatch"),
    f"{_BASE}._compute_advantage": ("self", "batch", "metrics"),
    f"{_BASE}._compute_metrics": ("self", "batch", "metrics", "timing_raw", "global_steps", "epoch"),
    f"{_BASE}._save_checkpoint": ("self",),
    f"{_BASE}._load_checkpoint": ("self",),
    f"{_BASE}.on_train_end": ("self",),
    f"{_V1}.trainer_sync:PPOTrainerSync.on_step_end": ("self",),
    f"{_V1}.trainer_base:register_trainer": ("name",),
    "verl.trainer.ppo.core_algos:register_adv_est": ("name_or_enum",),
    "verl.utils.tensordict_utils:assign_non_tensor_stack": ("tensor_dict", "key", "val"),
    "verl.utils.tensordict_utils:index_select_tensor_dict": ("batch", "indices"),
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score": ("self", "outputs", "kwargs"),
}

# object -> text that its source must contain
SOURCES: dict[str, tuple[str, ...]] = {
    # the field that carries a prompt's number of rollouts
    f"{_V1}.agent_loop_tq:AgentLoopWorkerTQ._run_prompt": ('"__rollout_n__"',),
    # the key of a trajectory, and a score that is kept if it is there already
    f"{_V1}.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess": ('f"{uid}_{session_id}_{i}"', "_compute_score"),
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score": ("final_output.reward_score is None",),
    # the string that selects the synchronous replay buffer, and what it says when every rollout failed
    f"{_BASE}._build_replay_buffer": ('self.trainer_mode == "sync"',),
    f"{_V1}.replay_buffer:ReplayBuffer.sample": ("no materializable trajectories",),
    # the log-probabilities of the sampled tokens, under one name in both modes, before the advantages
    f"{_BASE}._compute_old_log_prob": (
        'data["old_log_probs"] = data.pop("rollout_log_probs")',
        'data["old_log_probs"] = response_from_nested(',
    ),
    f"{_BASE}._step_once": ("batch_size=sample_batch_size", "_compute_old_log_prob", "_compute_advantage"),
    # a step's prompts are fetched when the step begins, and the data set is gone through again and again
    f"{_BASE}.prepare_step": ("_add_batch_to_generate",),
    f"{_BASE}._fetch_one_gen_batch": ("StopIteration",),
    # the tracker is written after everything else
    f"{_BASE}._save_checkpoint": ("latest_checkpointed_iteration.txt", 'f"global_step_{self.global_steps}"'),
    # uid reaches the estimators as `index`; padding rows are known by their uid
    "verl.trainer.ppo.ray_trainer:compute_advantage": ('adv_kwargs["index"]',),
    "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size": ('f"pad{uuid.uuid4().hex}"',),
    "verl.trainer.main_ppo:TaskRunnerV1.init_agent_loop_manager": ('get("agent_loop_manager_class")',),
}


def resolve(path: str) -> object:
    """The object at ``module:attribute.attribute``; a Ray actor class gives its plain class."""
    module, _, attributes = path.partition(":")
    target: object = importlib.import_module(module)
    for name in attributes.split("."):
        target = getattr(target, name)
        metadata = getattr(target, "__ray_metadata__", None)
        target = target if metadata is None else metadata.modified_class
    return target


def drift() -> list[str]:
    """What is not as in the tested versions of verl, one sentence each; empty when all is well."""
    found = []
    for path, expected in SIGNATURES.items():
        try:
            parameters = inspect.signature(resolve(path)).parameters  # type: ignore[arg-type]
        except (ImportError, AttributeError) as error:
            found.append(f"{path} is gone: {error}")
            continue
        actual = tuple(name for name in parameters if not name.startswith("_ray"))  # Ray adds its trace context
        if actual != expected:
            found.append(f"{path} must take {expected}, but takes {actual}")
    for path, texts in SOURCES.items():
        try:
            source = inspect.getsource(resolve(path))  # type: ignore[arg-type]
        except (ImportError, AttributeError, OSError) as error:
            found.append(f"{path} is gone: {error}")
            continue
        found.extend(f"{path} must contain {text!r}, but does not" for text in texts if text not in source)
    return found
