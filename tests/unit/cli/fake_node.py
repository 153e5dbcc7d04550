"""The HTTP port of a node whose answers a test puts in place."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class FakeNode:
    """Answers by method and path with JSON; 404 as a framework answers it where nothing was put."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Any] = {}
        """(method, path): the answer, or a list of (status, answer) that is used up one by one."""
        self.asked: list[tuple[str, str, dict[str, list[str]], Any]] = []
        """(method, path, query, body) of every request."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                size_bytes = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size_bytes)) if size_bytes else None
                fake.asked.append((self.command, parts.path, parse_qs(parts.query), body))
                status, answer = fake.find(self.command, parts.path)
                data = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PATCH = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def find(self, method: str, path: str) -> tuple[int, Any]:
        if (method, path) not in self.answers:
            return 404, {"detail": "Not Found"}
        answer = self.answers[method, path]
        if isinstance(answer, list):
            status, found = answer.pop(0) if len(answer) > 1 else answer[0]
            return int(status), found
        return (204, None) if answer is None else (200, answer)

    def __enter__(self) -> "FakeNode":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
