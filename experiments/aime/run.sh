#!/usr/bin/env bash
# Table 1: three models x {dr_grpo, rloo} x {uniform, vip} x {8q, 16q}.
#
#   run.sh MODEL ESTIMATOR POLICY BUDGET [SEED] [verl overrides...]   one run
#   run.sh --all [verl overrides...]                                  all 24 runs, one after the other
#   run.sh --print MODEL ESTIMATOR POLICY BUDGET [SEED] [...]         the overrides, one a line; runs nothing
#   run.sh --smoke                                                    all stages on CPU with a tiny model
#
# Environment: DATA (folder of prepare.py's files), RUNS (output), GPUS (per node, 8), NODES (1), MODELS (folder of local
# models; hub ids where unset), MINI_BATCH (512), PREDICTOR (calibrated), EMBEDDING (none), LOGGER ([console]).
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHON="${PYTHON:-python}"
DATA="${DATA:-$HERE/data}"
RUNS="${RUNS:-$PWD/runs/aime}"

declare -A HUB=(
  [qwen2.5-math-1.5b]=Qwen/Qwen2.5-Math-1.5B
  [qwen2.5-math-7b]=Qwen/Qwen2.5-Math-7B
  [llama-3.2-3b-instruct]=meta-llama/Llama-3.2-3B-Instruct
)

one_of() { # name value choices...
  local name=$1 value=$2; shift 2
  for choice in "$@"; do [[ $value == "$choice" ]] && return; done
  echo "$name must be one of: $*, but got '$value'" >&2; exit 2
}

# fills ARGS and RUN
recipe() {
  local model=$1 estimator=$2 policy=$3 budget=$4 seed=${5:-1}
  one_of MODEL "$model" "${!HUB[@]}"; one_of ESTIMATOR "$estimator" dr_grpo rloo
  one_of POLICY "$policy" uniform vip; one_of BUDGET "$budget" 8q 16q
  RUN="$RUNS/${model}_${estimator}_${policy}_${budget}_seed${seed}"
  local path="${HUB[$model]}"
  [[ -n ${MODELS:-} ]] && path="$MODELS/$(basename "$path")"
  ARGS=(
    trainer.v1.trainer_mode=viprl_sync
    algorithm.adv_estimator="viprl_$estimator"
    +viprl.policy="$policy"
    +viprl.predictor="${PREDICTOR:-calibrated}"
    +viprl.min_group_size=4 +viprl.max_group_size=32
    +viprl.grade_own_tokens=true
    algorithm.use_kl_in_reward=False
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.entropy_coeff=0
    # the gradient of a rollout is the mean over its own tokens
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    data.train_files="$DATA/train.parquet" data.val_files="$DATA/test.parquet"
    data.train_batch_size=512
    data.shuffle=False
    data.seed="$seed"
    data.max_prompt_length=2048 data.filter_overlong_prompts=True
    data.max_response_length=10240
    actor_rollout_ref.model.path="$path"
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.optim.lr_warmup_steps=20
    actor_rollout_ref.actor.ppo_mini_batch_size="${MINI_BATCH:-512}"
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576
    actor_rollout_ref.actor.data_loader_seed="$seed"
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n="${budget%q}"
    actor_rollout_ref.rollout.seed="$seed"
    actor_rollout_ref.rollout.temperature=1.0
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.calculate_log_probs=True
    actor_rollout_ref.rollout.val_kwargs.n=32
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    reward.custom_reward_function.path="$HERE/reward.py"
    reward.custom_reward_function.name=compute_score
    trainer.n_gpus_per_node="${GPUS:-8}" trainer.nnodes="${NODES:-1}"
    trainer.logger="${LOGGER:-[console]}"
    trainer.project_name=viprl_aime trainer.experiment_name="$(basename "$RUN")"
    trainer.default_local_dir="$RUN/checkpoints"
    trainer.validation_data_dir="$RUN/validation"
    trainer.total_epochs=2
    trainer.save_freq=10 trainer.test_freq=10 trainer.val_before_train=False
    hydra.run.dir="$RUN/hydra"
  )
  [[ -n ${EMBEDDING:-} ]] && ARGS+=(+viprl.embedding_model="$EMBEDDING")
  # Qwen2.5-Math was trained for 4,096 positions; the paper's 10,240 new tokens need more
  [[ $model == qwen* ]] && ARGS+=(+actor_rollout_ref.model.override_config.max_position_embeddings=16384)
  return 0
}

case "${1:-}" in
  --smoke) exec "$PYTHON" "$HERE/smoke.py" "${@:2}" ;;
  --print) recipe "${@:2:5}"; printf '%s\n' "${ARGS[@]}" "${@:7}" ;;
  --all)
    for model in "${!HUB[@]}"; do for estimator in dr_grpo rloo; do for policy in uniform vip; do for budget in 8q 16q; do
      recipe "$model" "$estimator" "$policy" "$budget"
      "$PYTHON" -m verl.trainer.main_ppo "${ARGS[@]}" "${@:2}"
    done; done; done; done ;;
  "") sed -n '2,11p' "${BASH_SOURCE[0]}"; exit 2 ;;
  *) recipe "${@:1:5}"; exec "$PYTHON" -m verl.trainer.main_ppo "${ARGS[@]}" "${@:6}" ;;
esac
