#!/bin/sh
# Asks a public database whether versions in requirements-dev.lock have known faults. A database that cannot be
# reached, or a tool that cannot be had, is told and is no failure; a fault that was found is one.
set -u
environment=${VENV:-.venv}-audit
if [ ! -x "$environment/bin/pip-audit" ]; then
    "${VENV:-.venv}/bin/python" -m venv "$environment" &&
        "$environment/bin/pip" install -q --retries 0 --timeout 10 pip-audit 2>/dev/null || {
        echo "audit: not done, pip-audit cannot be installed here"
        rm -rf "$environment"
        exit 0
    }
fi
report=$("$environment/bin/pip-audit" --disable-pip --require-hashes --timeout 10 -r requirements-dev.lock 2>&1)
status=$?
case $report in
*Version*ID*Fix*) echo "$report"; exit 1 ;;
# It calls a package that it could not ask about free of faults.
*"could not be audited"*)
    echo "audit: not done, the database does not know $(echo "$report" | grep -c "could not be audited") packages"
    ;;
*"No known vulnerabilities found"*) echo "audit: no known faults of the dependencies" ;;
*) [ $status -eq 0 ] || { echo "audit: not done, the database cannot be reached:"; echo "$report" | tail -n 1; } ;;
esac
exit 0
