#!/usr/bin/env bash
# Writes requirements-dev.lock anew: the newest versions that pyproject.toml allows for `.[dev]`, with the hashes
# of all their files. One file serves every Python and platform named in its first lines; for each of them this
# script looks whether everything comes as a wheel, and refuses to write the lock otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
LOCK=requirements-dev.lock
PYTHONS="3.11 3.12 3.13 3.14"
PLATFORMS="linux-x86_64 linux-aarch64 darwin-arm64"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check uv
uv=$work/venv/bin/uv

# What builds and installs the project itself is locked too.
printf 'pip\nsetuptools>=77\n' >"$work/build.in"
"$uv" pip compile -q --universal --python-version "${PYTHONS%% *}" --generate-hashes --no-annotate --no-header \
  --extra dev pyproject.toml "$work/build.in" -o "$work/packages"

wheels_of() {
  case $1 in
    linux-*) echo "${1#linux-}-manylinux_2_28" ;;
    darwin-arm64) echo aarch64-apple-darwin ;;
  esac
}
for python in $PYTHONS; do
  for platform in $PLATFORMS; do
    "$uv" pip install -q --dry-run --require-hashes --only-binary :all: --target "$work/target" \
      --python-version "$python" --python-platform "$(wheels_of "$platform")" -r "$work/packages" \
      || { echo "lock: no wheels for Python $python on $platform; $LOCK stays as it was" >&2; exit 1; }
  done
done

{
  echo "# What development needs, in exact versions, with hashes. Made by \`make lock\`; not to be edited."
  echo "# pythons: $PYTHONS"
  echo "# platforms: $PLATFORMS"
  cat "$work/packages"
} >"$work/lock"
cp "$work/lock" "$LOCK"
echo "lock: $(grep -c '==' "$LOCK") packages in $LOCK, for Python $PYTHONS on $PLATFORMS"
