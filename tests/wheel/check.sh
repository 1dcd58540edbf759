#!/usr/bin/env bash
# Build the wheel, install it into a clean environment, and use it from another folder exactly like the checkout.
set -euo pipefail
python=$1
repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" "$repository"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$work"/dist/skill_run-*.whl

cd "$work"
printf 'model:\n  context_parallel_size: 2\n  seq_length: 4096\ndataset:\n  seq_length: 4096\n  enable_offline_packing: true\n  offline_packing_specs:\n    packed_sequence_size: 4096\n' > packed.yaml
"$work/venv/bin/skill-run" verify
"$work/venv/bin/skill-run" skills list > skills.txt
status=0
"$work/venv/bin/skill-run" validate packed.yaml --bridge 0.6.2 --format json > wheel.json || status=$?
test "$status" -eq 1
status=0
"$(dirname "$python")/skill-run" validate packed.yaml --bridge 0.6.2 --format json > checkout.json || status=$?
test "$status" -eq 1
cmp wheel.json checkout.json
grep -q offline-pad-multiple-covers-cp wheel.json
echo "the wheel answers like the checkout"
