#!/usr/bin/env bash
# Builds sdist and wheel, checks their metadata, and installs the wheel into clean environments: bash scripts/check_package.sh
# Arguments are the sets of extras to try; "-" is none. PYTHON names the interpreter.
#   bash scripts/check_package.sh            # - report search
#   PYTHON=python3.13 bash scripts/check_package.sh - report tasks embed trl
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
sets=("$@"); [ $# -gt 0 ] || sets=(- report search)
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install -q build twine
"$scratch/build/bin/python" -m build -q --outdir "$scratch/dist" .
"$scratch/build/bin/twine" check --strict "$scratch"/dist/*
wheel=$(ls "$scratch"/dist/*.whl)
echo "wheel $(stat -c %s "$wheel") bytes, sdist $(stat -c %s "$scratch"/dist/*.tar.gz) bytes, $("$python" --version)"

for extras in "${sets[@]}"; do
  room="$scratch/env-$extras"
  "$python" -m venv "$room"
  wanted=$wheel; [ "$extras" = - ] || wanted="$wheel[$extras]"
  # torch comes first and pinned: another version would bring CUDA packages
  case $extras in *embed* | *trl*) "$room/bin/pip" install -q -c constraints.txt torch ;; esac
  "$room/bin/pip" install -q "$wanted"
  # away from the checkout, so that only what was installed is found
  (cd "$scratch" && "$room/bin/viprl" --version && "$room/bin/python" - <<'PY'
import pathlib
import viprl
assert (pathlib.Path(viprl.__file__).parent / "py.typed").exists(), "py.typed is missing"
allocator = viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.RLOO())
plan = allocator.allocate(["a", "b"], 16)
allocator.observe(plan, [[0.0] * n for n in plan.group_sizes])
assert plan.group_sizes.sum() == 16
PY
  )
  "$room/bin/pip" check
  echo "extras $extras: installed and used"
done
