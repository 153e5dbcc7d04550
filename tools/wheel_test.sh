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

cd "$work"
unset PYTHONPATH
venv/bin/millrace --version
venv/bin/millrace demo --help >/dev/null
! command -v gcc >/dev/null || MILLRACE_KERNELS=c venv/bin/python -c 'import millrace.kernels'
venv/bin/python - <<'EOF'
import asyncio
import importlib.util
import pathlib
import sys

import millrace
from millrace.client import Client

assert pathlib.Path(millrace.__file__).is_relative_to(sys.prefix), millrace.__file__


async def one_message() -> None:
    async with (
        millrace.Broker() as broker,
        Client(broker.url) as client,
        client.subscribe("greetings/#") as messages,
    ):
        await client.publish("greetings/wheel", b"hello", qos=1)
        message = await anext(aiter(messages))
        assert (message.topic, bytes(message.payload)) == ("greetings/wheel", b"hello"), message


asyncio.run(asyncio.wait_for(one_message(), 30))

# Without the extra `spark` the package is found, and all it lacks is what that extra brings.
assert importlib.util.find_spec("pyspark_millrace") is not None
try:
    import pyspark_millrace
except ModuleNotFoundError as error:
    assert error.name in ("pyspark", "pyarrow", "numpy"), error
    print(f"wheel: pyspark_millrace asks for {error.name}, as it should without the extra")
EOF
echo "wheel: installs and works"
