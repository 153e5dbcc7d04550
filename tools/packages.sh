#!/usr/bin/env bash
# Installs what Debian provides and is not here, where it can: as root, with apt-get. Otherwise it says what is left out.
#   tools/packages.sh work    real peers and clients for tests and benchmarks, and a compiler; fails if apt-get fails
#   tools/packages.sh show    a browser, Prometheus' own tool, a balancer and other shells, for tests alone; a failure is told and is no error
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }

case ${1:-} in
  work)
    tools="mosquitto:mosquitto mosquitto_pub:mosquitto-clients nc.openbsd:netcat-openbsd gcc:gcc nft:nftables ip:iproute2"
    without="the broker runs without them, tests that need them say so" ;;
  show)
    # Without recommended packages a browser has no letters.
    tools="chromium:chromium:fonts-dejavu-core promtool:prometheus zsh:zsh fish:fish haproxy:haproxy"
    without="tests of the dashboard in a browser, of the alert rules, of completion and of the balancer are skipped" ;;
  *)
    echo "usage: tools/packages.sh work|show" >&2; exit 2 ;;
esac

missing=()
for tool in $tools; do
  IFS=: read -ra names <<<"$tool"
  PATH=$PATH:/usr/sbin command -v "${names[0]}" >/dev/null || missing+=("${names[@]:1}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "not installed: ${missing[*]} (as root: apt-get install ${missing[*]}); $without"
  exit 0
fi
say "installing ${missing[*]}"
# Both lists are installed at the same time as other things: apt-get waits for its turn.
wait_s="-o DPkg::Lock::Timeout=300"
if ! { apt-get $wait_s update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive \
    apt-get $wait_s install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
  if [ "$1" = work ]; then
    say "apt-get could not install ${missing[*]}: install them by hand and run make setup again" >&2
    exit 1
  fi
  say "apt-get could not install ${missing[*]}; $without"
fi
