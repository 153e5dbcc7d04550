#!/usr/bin/env bash
# Runs the unit tests, against the wheel, on the newest Python at hand besides the one in .venv (3.12 or newer).
# Where there is none it says so: that is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
JOBS=${JOBS:-2}
. tools/wheel.sh

# A name may be a shim that refuses: what counts is what answers.
version_of() { "$1" -c 'import sys; print("%d.%02d" % sys.version_info[:2])' 2>/dev/null; }

candidates() {
  compgen -c python3. | grep -E '^python3\.[0-9]+$' || true
  ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python 2>/dev/null || true
}

ours=$(version_of "$VENV/bin/python")
best=
best_version=3.11
for python in $(candidates); do
  version=$(version_of "$python") || continue
  if [[ $version > $best_version && $version != "$ours" ]]; then
    best=$python best_version=$version
  fi
done
if [ -z "$best" ]; then
  echo "newest Python: none from 3.12 on is at hand besides $VENV's own ($ours); the tests ran on that alone"
  exit
fi

echo "newest Python: unit tests on $("$best" -V)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$best" -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
build_wheel "$python" "$work"
"$python" -m pip install -q --disable-pip-version-check --no-deps "$work"/millrace-*.whl
unset PYTHONPATH
"$python" tools/ci_tests.py --jobs "$JOBS" tests/unit
