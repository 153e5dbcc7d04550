"""Spans on their way to an OpenTelemetry collector, in a thread of their own.

Whoever has spans puts plain tuples into a queue with a bound and goes on. The thread makes OpenTelemetry's
spans of them and sends them by OTLP over HTTP. Where the collector does not take them they are lost, counted,
and the log says so once.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from random import SystemRandom
from typing import Any, Literal, NamedTuple

from millrace.errors import ConfigError
from millrace.limits import TRACE_SPANS_WAITING_MAX
from millrace.version import __version__

log = logging.getLogger("millrace.tracing")

_PERIOD_S = 0.5
_ANSWER_S = 5.0
_SPANS_AT_ONCE = 512
_PATH = "/v1/traces"
DROP_REASONS = ("collector", "queue")
_NOT_INSTALLED = "traces need OpenTelemetry: pip install 'millrace[otel]'"

SpanKind = Literal["SERVER", "INTERNAL", "PRODUCER", "CONSUMER"]
"""The names that OpenTelemetry has for them."""


class Span(NamedTuple):
    """What took how long. `span_id` 0: any; `parent_id` 0: the first of its trace."""

    name: str
    kind: SpanKind
    trace_id: int
    parent_id: int
    start_us: int
    end_us: int
    attributes: Mapping[str, str | int]
    span_id: int = 0


class SpanExporter:
    """`put` may be called from any thread. `close` once. ConfigError where OpenTelemetry is not installed."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError:
            raise ConfigError(_NOT_INSTALLED) from None
        # It writes a line and more for each failure; here each change is said once.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        self._endpoint = url
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=_ANSWER_S)
        names = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
        self._resource = Resource.create(names)
        self._scope = InstrumentationScope("millrace", __version__)
        self._random = SystemRandom()
        self._waiting: deque[Span] = deque()
        self._is_failing = False
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self._has_some = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, spans: Iterable[Span]) -> None:
        for span in spans:
            if len(self._waiting) >= TRACE_SPANS_WAITING_MAX:
                self.dropped["queue"] += 1
                continue
            self._is_idle.clear()
            self._waiting.append(span)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put is sent or lost; False where it takes longer."""
        self._has_some.set()
        return self._is_idle.wait(timeout_s)

    def close(self) -> None:
        """Send what is there, within the time that an answer may take."""
        self._is_closing = True
        self._has_some.set()
        self._thread.join(_ANSWER_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        while True:
            self._has_some.wait(_PERIOD_S)
            self._has_some.clear()
            is_last = self._is_closing
            while self._waiting:
                count = min(len(self._waiting), _SPANS_AT_ONCE)
                self._send([self._waiting.popleft() for _ in range(count)])
            self._is_idle.set()
            if is_last:
                return

    def _send(self, spans: list[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._made(span) for span in spans])
            is_failing = result is not SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever goes wrong there, the node goes on
            log.debug("traces: %r", error)
            is_failing = True
        if is_failing:
            self.dropped["collector"] += len(spans)
        else:
            self.sent += len(spans)
        if is_failing != self._is_failing:
            self._is_failing = is_failing
            if is_failing:
                log.warning("%s does not take traces; they are dropped until it does", self._endpoint)
            else:
                log.info("%s takes traces again", self._endpoint)

    def _made(self, span: Span) -> Any:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan

        def context(span_id: int, *, is_remote: bool) -> Any:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            return trace.SpanContext(span.trace_id, span_id, is_remote, flags)

        own = span.span_id or self._random.getrandbits(64) or 1
        return ReadableSpan(
            name=span.name,
            context=context(own, is_remote=False),
            parent=context(span.parent_id, is_remote=True) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=trace.SpanKind[span.kind],
            instrumentation_scope=self._scope,
            start_time=span.start_us * 1000,
            end_time=max(span.start_us, span.end_us) * 1000,
        )
