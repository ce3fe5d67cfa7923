#!/usr/bin/env bash
# The verl environment and its tests, on CPU. Arguments go to pytest (default: everything marked verl).
#
# verl 0.9 needs transformers below 5.11, so it has an environment of its own: .venv-verl. It is built once and built
# again when pyproject.toml or constraints-verl.txt change. VENV_VERL names another place, PYTHON another interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ENV="${VENV_VERL:-.venv-verl}"
PYTHON="${PYTHON:-$(command -v python3.11 || command -v python3)}"
STAMP="$ENV/.viprl-$(cat pyproject.toml constraints-verl.txt | sha256sum | cut -c1-16)"

if [[ ! -e $STAMP ]]; then
  [[ -x $ENV/bin/python ]] || "$PYTHON" -m venv "$ENV"
  pip=("$ENV/bin/python" -m pip install -q -c constraints-verl.txt)
  "${pip[@]}" --upgrade pip
  "${pip[@]}" torch  # first and alone: as a dependency it could bring gigabytes of CUDA libraries
  "${pip[@]}" verl
  # what the V1 trainer imports and verl's package does not name
  "${pip[@]}" cachetools uvicorn fastapi TransferQueue pyzmq msgspec
  "${pip[@]}" transformers math-verify pytest pytest-xdist hypothesis
  "${pip[@]}" -e .
  rm -f "$ENV"/.viprl-*
  touch "$STAMP"
fi

export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore
"$ENV/bin/viprl" doctor verl
# Ray clusters of two tests side by side: half of a run is one process starting after the other
if [[ $# == 0 ]]; then
  set -- -n 2 --dist worksteal tests/integrations/verl tests/verl_cpu tests/tasks/search/test_verl.py
fi
exec "$ENV/bin/python" -m pytest "$@"
