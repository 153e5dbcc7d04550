#!/usr/bin/env bash
# Builds the wheel, installs it in a fresh environment outside the repository, and uses it there as a stranger would:
# what is missing in the package, or declared nowhere as a dependency, shows here.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
. tools/wheel.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build_wheel "$VENV/bin/python" "$work"
missing=$(LC_ALL=C comm -23 <(cd "$work/source/src" && find millrace pyspark_millrace -type f | LC_ALL=C sort) \
  <("$VENV/bin/python" -m zipfile -l "$work"/millrace-*.whl | awk '{ print $1 }' | LC_ALL=C sort))
[ -z "$missing" ] || { echo "wheel: not in it (package-data in pyproject.toml): $missing" >&2; exit 1; }
"$PYTHON" -m venv "$work/venv"
# The locked versions of what the wheel asks for, and nothing else that development has.
grep -oE '^[a-z0-9-]+==[^ ]+' requirements-dev.lock >"$work/constraints"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$work/constraints" "$work"/millrace-*.whl

try=$PWD/tools/try_installed.py
cd "$work"
unset PYTHONPATH
venv/bin/millrace --version
venv/bin/millrace demo --help >/dev/null
! command -v gcc >/dev/null || MILLRACE_KERNELS=c venv/bin/python -c 'import millrace.kernels'
venv/bin/python "$try"
echo "wheel: installs and works"
