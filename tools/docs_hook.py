"""What MkDocs does besides rendering: it lists the decisions, and mends links that leave the documentation.

A page may link to a file outside docs/, such as a test or an example. Readers of the repository can follow
such a link. The site has no such file, so there the link becomes the name of the file, in code letters.
"""

import os
import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)


def on_config(config: Any) -> Any:
    """Append every page of docs/decisions to its part of the navigation."""
    for part in config.nav:
        for name, pages in part.items():
            if name == "Decisions":
                known = {page for page in pages if isinstance(page, str)}
                found = sorted(os.listdir(os.path.join(config.docs_dir, "decisions")))
                pages += [f"decisions/{one}" for one in found if f"decisions/{one}" not in known]
    return config


def without_outside_links(markdown: str, source: str) -> str:
    """The text of the page `source` (a path below docs/), where links that leave docs/ are names of files."""

    def replaced(found: re.Match[str]) -> str:
        target, _, _ = found[2].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
        if path.startswith("docs/"):
            return found[0]
        return found[1] if path in found[1] else f"{found[1]} (`{path}`)"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return without_outside_links(markdown, page.file.src_uri)
