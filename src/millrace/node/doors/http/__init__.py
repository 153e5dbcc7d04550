"""The HTTP door: the queue, streams, groups, publishing, and the state of the node.

FastAPI served by uvicorn on the node's own event loop; a route parses, calls and answers. `guard` stands
before all of them: who calls, from which page, and how much may be sent. Every error is a problem document
(RFC 9457). `http_front` opens the door, and loads all this once a request needs it.
"""
