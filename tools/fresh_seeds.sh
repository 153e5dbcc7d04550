#!/usr/bin/env bash
# A short campaign of the simulator in every mode, on seeds that no earlier commit has run: the first one comes
# from the commit's hash, so that whoever has the commit has the seeds. SEED=N chooses another first seed.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
JOBS=${JOBS:-2}

if [ -z "${SEED:-}" ]; then
  if commit=$(git rev-parse --verify -q HEAD 2>/dev/null); then
    SEED=$((16#${commit:0:8}))
    echo "fresh seeds: from $SEED, after commit ${commit:0:12}"
  else
    SEED=$(date +%s)
    echo "fresh seeds: from $SEED, after the clock, because this is no git checkout"
  fi
fi

failed=()
# About 90 seconds on two idle cores, half of them for whole nodes.
for work in raft:120 primary-backup:120 leaderless:30 routed:100 cluster:16; do
  mode=${work%:*} count=${work#*:}
  command="$VENV/bin/millrace sim --mode $mode --seed $SEED --seeds $count --jobs $JOBS"
  echo "fresh seeds: $command"
  # The simulator prints each seed that breaks a promise, with the command that replays it.
  $command || failed+=("$command")
done

if [ ${#failed[@]} -gt 0 ]; then
  echo "fresh seeds: FAILED. The lines above name the seeds and how to replay one; all of them again:" >&2
  printf '  %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "fresh seeds: every promise kept"
