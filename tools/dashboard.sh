#!/usr/bin/env bash
# Builds the web dashboard into the package, so that nodes serve it and the wheel takes it along. Does nothing where
# it was built from the same sources before; says in one line what is left out where it cannot be built.
set -euo pipefail
cd "$(dirname "$0")/../dashboard"
BUILT=../src/millrace/node/doors/http/assets/dashboard
# Beside the packages, not beside the result: what lies there goes into the wheel.
STAMP=node_modules/.millrace-built-from

say() { printf 'setup: %s\n' "$*"; }

if ! command -v npm >/dev/null; then
  [ -f "$BUILT/index.html" ] || say "no npm: the dashboard is not built, the page / says so, the rest works"
  exit 0
fi

# What the result is made of: not the tests, the mock and the pages for people.
sources=$(find index.html package.json package-lock.json tsconfig.json vite.config.ts src -type f | LC_ALL=C sort \
  | xargs sha256sum | sha256sum | cut -d ' ' -f 1)
[ -f "$BUILT/index.html" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$sources" ] && exit 0

say "building the dashboard"
# Without scripts: no package needs one, and none should run code at installation.
if ! { npm ci --silent --ignore-scripts --no-audit --no-fund && npm run --silent build -- --logLevel error; }; then
  say "npm could not build the dashboard: the page / says so, the rest works"
  # For people a broker without its dashboard is better than none; a change that breaks it must not pass.
  [ -z "${CI:-}" ]
  exit
fi
echo "$sources" >"$STAMP"
