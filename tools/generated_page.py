"""What the tools that make a page of docs/ from the code share: write it, or say that it is out of date."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def write_or_check(page: Path, text: str, arguments: list[str]) -> int:
    """Write the page; with --check only compare it. The status for the shell."""
    if "--check" not in arguments:
        page.write_text(text)
        return 0
    if page.exists() and page.read_text() == text:
        return 0
    sys.stderr.write(f"{page.name} is not what the code says: run `make reference`\n")
    return 1
