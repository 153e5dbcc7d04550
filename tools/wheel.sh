# Sourced by the scripts that test an installed wheel. Builds it outside the repository: a build inside it would
# take along what an earlier build left in build/.

# build_wheel PYTHON FOLDER: leaves FOLDER/millrace-*.whl. PYTHON needs setuptools.
build_wheel() {
  PYTHON=$1 tools/jar.sh
  mkdir -p "$2/source"
  cp -r pyproject.toml setup.py README.md LICENSE src "$2/source"
  find "$2/source" \( -name '*.so' -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +
  "$1" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$2" "$2/source"
}
