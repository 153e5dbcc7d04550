#!/usr/bin/env bash
# Makes .venv with everything that running, testing and benchmarking need. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
LOCK=requirements-dev.lock
VIEWER=$PWD/src/millrace/node/doors/http/assets/swagger-ui

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "Python 3.11 or newer is needed; name it: make setup PYTHON=/path/to/python3.11"

tools/packages.sh work
# Large, and only for tests: while Python's packages are installed. Its words come at the end.
shown=$(mktemp)
tools/packages.sh show >"$shown" 2>&1 &
showing=$!
trap 'rm -f "$shown"' EXIT

[ -x "$VENV/bin/python" ] || { say "creating $VENV"; "$PYTHON" -m venv "$VENV"; }
pip() { "$VENV/bin/python" -m pip "$@" -q --disable-pip-version-check; }

# True where the lock was made for this Python on this platform: its first lines name them.
is_locked() {
  local facts version platform
  facts=$("$VENV/bin/python" - <<'EOF'
import platform, sys
version = f"{sys.version_info.major}.{sys.version_info.minor}"
if sys.implementation.name != "cpython":
    version = f"{sys.implementation.name}-{version}"
libc = "musl-" if sys.platform == "linux" and platform.libc_ver()[0] != "glibc" else ""
print(version, f"{sys.platform}-{libc}{platform.machine()}")
EOF
  )
  read -r version platform <<<"$facts"
  grep -qE "^# pythons:.* ${version//./\\.}( |$)" "$LOCK" && grep -qE "^# platforms:.* $platform( |$)" "$LOCK" && return
  say "$LOCK is not made for Python $version on $platform:" \
      "installing the newest versions that pyproject.toml allows, without hashes"
  return 1
}

# An optional extension fails silently and a stale one survives: remove the old, build anew, look.
rm -rf build src/millrace/kernels/_kernels*.so
# Only a foreign Python or platform turns the lock off. Where it serves, a wrong hash or a missing file is an error.
if is_locked; then
  say "installing Python packages from $LOCK"
  pip install --require-hashes -r "$LOCK"
  pip install --no-deps --no-build-isolation -e .
else
  pip install -U pip "setuptools>=77"
  pip install -e '.[dev]'
fi

# The viewer of the HTTP API (/docs), a part of the package. Without scripts: the package's own would report the installation.
if command -v npm >/dev/null; then
  mkdir -p build/swagger-ui "$VIEWER"
  if npm install --prefix build/swagger-ui --silent --ignore-scripts --no-audit --no-fund --no-save \
      swagger-ui-dist@5.34.1; then
    (cd build/swagger-ui/node_modules/swagger-ui-dist && cp swagger-ui.css swagger-ui-bundle.js LICENSE NOTICE "$VIEWER")
  else
    say "npm could not install swagger-ui-dist: the page /docs says so, the rest works"
  fi
else
  say "no npm: the page /docs shows only a link to /openapi.json"
fi

tools/dashboard.sh

wait "$showing" || true
cat "$shown"
if command -v gcc >/dev/null; then
  "$VENV/bin/python" -c 'import millrace.kernels as k, sys; sys.exit(not k.ACCELERATED)' \
    || fail "gcc is here but the C kernels were not built; see: $VENV/bin/pip install -v -e ."
  say "ready, with C kernels: $VENV/bin/millrace"
else
  say "ready, without C kernels (no gcc): $VENV/bin/millrace"
fi
