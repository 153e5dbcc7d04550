"""The HTTP door: the queue, streams, groups, publishing, and the state of the node.

FastAPI served by uvicorn on the node's own event loop; a route parses, calls and answers. `guard` stands
before all of them: who calls, from which page, and how much may be sent. Every error is a problem document
(RFC 9457).
"""

from millrace.node.doors.http.app import make_app
from millrace.node.doors.http.door import HttpDoor

__all__ = ["HttpDoor", "make_app"]
