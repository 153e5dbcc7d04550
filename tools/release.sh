#!/usr/bin/env bash
# Makes what is published, in dist/, and tries it out as a stranger would. Uploads nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
ROOT=$PWD

say() { printf 'release: %s\n' "$*"; }
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

# Version, changelog and licence.
version=$("$VENV/bin/millrace" --version | awk '{ print $NF }')
grep -qE "^## $version( |$)" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
! grep -qE "^## $version \(unreleased\)" CHANGELOG.md || fail "CHANGELOG.md calls $version unreleased: write its date"
grep -q "Apache License" LICENSE || fail "LICENSE is not the Apache License"
[ -f src/millrace/node/doors/http/assets/dashboard/index.html ] \
  || fail "the dashboard is not built: a release needs npm (make dashboard)"

PYTHON="$VENV/bin/python" tools/jar.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The source distribution, and the wheel from nothing but it.
mkdir -p "$work/source" "$work/dist"
cp -r pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE src "$work/source"
find "$work/source" \( -name '*.so' -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +
(cd "$work/source" && "$ROOT/$VENV/bin/python" -W ignore -c \
  "import setuptools.build_meta as b; b.build_sdist('$work/dist')" >/dev/null)
sdist=$(echo "$work"/dist/millrace-*.tar.gz)
"$VENV/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/dist" "$sdist"
wheel=$(echo "$work"/dist/millrace-*.whl)

has() { grep -qE "$2" "$work/list" || fail "$(basename "$1") lacks $2"; }
for file in "$sdist" "$wheel"; do
  case $file in *.whl) "$VENV/bin/python" -m zipfile -l "$file" ;; *) tar -tzf "$file" ;; esac >"$work/list"
  for part in LICENSE py.typed kernels/_kernels.c kernels/_filters.c kernels/_filters.h assets/dashboard/index.html pyspark_millrace/__init__.py; do
    has "$file" "$part"
  done
done
has "$wheel" 'kernels/_kernels.*\.(so|pyd)'

# Each in a fresh environment outside the repository, with the versions that were tested.
grep -oE '^[a-z0-9-]+==[^ ]+' requirements-dev.lock >"$work/constraints"
unset PYTHONPATH
for file in "$sdist" "$wheel"; do
  say "installing $(basename "$file")"
  "$PYTHON" -m venv --clear "$work/venv"
  "$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$work/constraints" "$file"
  cd "$work"
  [ "$(venv/bin/millrace --version | awk '{ print $NF }')" = "$version" ] || fail "the installed program has another version"
  ! command -v gcc >/dev/null || MILLRACE_KERNELS=c venv/bin/python -c 'import millrace.kernels'
  venv/bin/python "$ROOT/tools/try_installed.py"
  if unshare --map-root-user --net --pid --fork --kill-child --mount-proc true 2>/dev/null; then
    unshare --map-root-user --net --pid --fork --kill-child --mount-proc \
      "$work/venv/bin/python" "$ROOT/tests/docs/run_page.py" "$ROOT/docs/start/tour.md"
    say "the tour works with $(basename "$file")"
  else
    say "left out: the tour (no right to make network namespaces)"
  fi
  cd "$ROOT"
done

mkdir -p dist
rm -f dist/millrace-*
cp "$sdist" "$wheel" dist/
(cd dist && sha256sum millrace-*)
say "$version is in dist/; nothing was uploaded"
