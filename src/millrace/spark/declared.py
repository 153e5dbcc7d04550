"""Supervises a pipeline that the cluster holds, for the node that owns it.

    python -m millrace.spark.declared

The node writes the plan on standard input, a line of JSON, and after it a line whenever its ownership was
renewed: until when it lasts, by the clock of the machine that only runs. Without such a line in time the
driver is stopped, whatever became of the node: it may be frozen, or cut off from the others. So it is when
standard input ends. Reports go to standard output, a line of JSON each, at least every few seconds.

Exit status: 0 it was told to stop, 1 it gave up, 2 the pipeline itself is wrong, 3 it lost its ownership.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from millrace.errors import ConfigError, LocalError
from millrace.spark.supervisor import Plan, State, Supervisor, last_lines

_REPORT_EVERY_S = 1.0
_REPEAT_S = 5.0
_LOOK_S = 0.25
OWNERSHIP_LOST = 3


def plan_of(line: bytes) -> Plan:
    """The plan as the node writes it; ConfigError where a newer node says what this program does not know."""
    try:
        given: dict[str, Any] = msgspec.json.decode(line)
        given |= {name: Path(given[name]) for name in ("file", "state")}
        given |= {name: tuple(given[name]) for name in ("settings", "configuration")}
        return Plan(**given)
    except (msgspec.MsgspecError, TypeError, KeyError) as error:
        raise ConfigError(f"the plan of the pipeline cannot be read: {error}") from None


class Ownership:
    """Until when the node owns the pipeline; stops the supervisor when that is over."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._until_s = float("inf")
        self.is_lost = False

    def read(self, lines: IO[bytes]) -> None:
        """What the node says, to the end."""
        for line in lines:
            self._until_s = float(msgspec.json.decode(line)["until_s"])
        self._supervisor.stop()

    def watch(self) -> None:
        while time.monotonic() < self._until_s:
            time.sleep(_LOOK_S)
        self.is_lost = True
        self._supervisor.stop()


class Reports:
    """Writes the state on standard output, at most once a second and whenever it has been quiet."""

    def __init__(self, plan: Plan, out: IO[bytes]) -> None:
        self._plan = plan
        self._out = out
        self._state = State()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                state, is_closing = self._state, self._is_closing
            self._write(state)
            if is_closing:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._state is not state, _REPEAT_S)  # noqa: B023
                self._changed.wait_for(lambda: self._is_closing, _REPORT_EVERY_S)

    def _write(self, state: State) -> None:
        fields = msgspec.to_builtins(state)
        fields["queries"] = list(fields["queries"].values())
        fields["log"] = last_lines(self._plan.log)
        try:
            self._out.write(msgspec.json.encode(fields) + b"\n")
            self._out.flush()
        except OSError:
            # The node is gone; standard input ends as well.
            return


def main() -> int:
    """Run the plan on standard input."""
    # Unbuffered: a thread that sleeps in a buffered read keeps the interpreter from ending.
    lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    plan = plan_of(lines.readline())
    reports = Reports(plan, sys.stdout.buffer)
    supervisor = Supervisor(plan, reports.show)
    ownership = Ownership(supervisor)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    for work in (lambda: ownership.read(lines), ownership.watch):
        threading.Thread(target=work, daemon=True).start()
    try:
        supervisor.run()
    except ConfigError:
        return 2
    except LocalError:
        return 1
    finally:
        reports.close()
    return OWNERSHIP_LOST if ownership.is_lost else 0


if __name__ == "__main__":
    sys.exit(main())
