"""The form of every HTTP answer: headers that keep browsers safe, and problem documents (RFC 9457)."""

from typing import Any

PROBLEM_TYPE = "application/problem+json"
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
NO_STORE = "no-store"
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
RETRY_AFTER = {"Retry-After": "1"}
"""For a refusal that soon may be none."""
ALIVE = {"status": "ok"}

_TITLES = {
    400: "Bad request",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    421: "Somebody else's name",
    422: "Not the right form",
    500: "Internal error",
    503: "Not now",
    507: "No room",
}


def problem(status: int, detail: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        **more,
    }
