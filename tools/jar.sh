#!/usr/bin/env bash
# Compiles the Spark source in Java against the jars of the installed PySpark, into the package, so that the wheel takes
# it along. Does nothing where it was built from the same sources before; says in one line what is left out where it
# cannot be built.
set -euo pipefail
cd "$(dirname "$0")/../spark-java"
PYTHON=$(cd .. && realpath -s "${PYTHON:-${VENV:-.venv}/bin/python}")
BUILT=../src/pyspark_millrace/jars/millrace-spark.jar

say() { printf 'jar: %s\n' "$*"; }

if ! command -v javac >/dev/null || ! command -v jar >/dev/null; then
  say "no javac: the source in Java is not built, Spark uses the one in Python"
  exit 0
fi
if ! jars=$("$PYTHON" -c 'import os, pyspark; print(os.path.join(os.path.dirname(pyspark.__file__), "jars"))' 2>/dev/null) \
  || [ ! -d "$jars" ]; then
  say "no PySpark (pip install -e '.[spark]'): the source in Java is not built, Spark uses the one in Python"
  exit 0
fi

sources=$(find src resources ../tools/jar.sh -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1)
if [ -f "$BUILT" ] && "$PYTHON" -m zipfile -t "$BUILT" >/dev/null 2>&1 && [ "$("$PYTHON" -c \
  'import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]).decode().strip())' \
  "$BUILT" META-INF/millrace-sources)" = "$sources" ]; then
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find src -name '*.java' | LC_ALL=C sort >"$work/files"
mkdir -p "$work/classes" "$(dirname "$BUILT")"
javac --release 17 -Xlint:all,-serial,-classfile,-path,-processing -Werror -cp "$jars/*" -d "$work/classes" "@$work/files"
cp -r resources/. "$work/classes"
echo "$sources" >"$work/classes/META-INF/millrace-sources"
# Without dates, the same sources make the same file.
jar --create --file "$work/millrace-spark.jar" --date=2026-01-01T00:00:00Z -C "$work/classes" .
mv "$work/millrace-spark.jar" "$BUILT"
say "built from $(wc -l <"$work/files") files"
