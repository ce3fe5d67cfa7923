#!/usr/bin/env bash
# verl's own CPU tests of what viprl overrides, with viprl's plugin loaded. The source comes from the package index; a
# checkout named by VERL_SOURCE adds the tests that the source package leaves out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ENV="$(cd "${VENV_VERL:-.venv-verl}" && pwd)"
VERSION="$("$ENV/bin/python" -c 'from importlib.metadata import version; print(version("verl"))')"
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT

if [[ -n ${VERL_SOURCE:-} ]]; then
  SOURCE="$VERL_SOURCE"
else
  "$ENV/bin/python" -m pip download -q --no-deps --no-binary verl --no-build-isolation -d "$WORK" "verl==$VERSION"
  tar -xzf "$WORK"/verl-*.tar.gz -C "$WORK"
  SOURCE="$WORK/verl-$VERSION"
fi

mkdir "$WORK/tests"
for test in trainer/ppo/test_core_algos_on_cpu.py trainer/ppo/test_loss_aggregation_on_cpu.py \
  trainer/test_multi_trajectories_advantage_on_cpu.py trainer/ppo/v1/test_trainer_base_on_cpu.py \
  trainer/ppo/v1/test_agent_loop_tq_on_cpu.py; do
  if [[ -e $SOURCE/tests/$test ]]; then cp "$SOURCE/tests/$test" "$WORK/tests/"; else echo "not in this source: $test"; fi
done
cat > "$WORK/tests/conftest.py" <<'PY'
import verl  # noqa: F401  loads the plugin
from verl.trainer.ppo.v1 import get_trainer_cls


def pytest_sessionstart(session):
    print("plugin:", get_trainer_cls("viprl_sync").__module__)
PY
cd "$WORK/tests"
OMP_NUM_THREADS=1 "$ENV/bin/python" -W ignore -m pytest -q -p no:cacheprovider .
