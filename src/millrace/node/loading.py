"""Loading modules without the collector of garbage.

Modules make many objects and almost no garbage. While they are loaded, the collector looks at all objects
again and again; in a node that serves, such a look holds the event loop for longer than any input may
[rule 33]. So it pauses, and what was loaded is never looked at again.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """For a process that is a node: what exists at the end stays, and whatever is garbage by then with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
