"""Look through the built site, the folder that is named: no page may load anything from another host."""

import sys
from html.parser import HTMLParser
from pathlib import Path

# What a browser fetches by itself. A link that a reader may click on is no load.
_LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
}
_LINK_RELATIONS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon", "modulepreload"}


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        names = _LOADS.get(tag, ())
        if tag == "link" and _LINK_RELATIONS & set((values.get("rel") or "").split()):
            names = ("href",)
        self.found += [value for name in names if (value := values.get(name))]


def loads(html: str) -> list[str]:
    """What a browser fetches for this page from another host."""
    parser = _Loads()
    parser.feed(html)
    return [one for one in parser.found if one.startswith(("http:", "https:", "//"))]


def outside_loads(site: Path) -> list[str]:
    """Page and address of everything that the site loads from elsewhere, in pages and style sheets."""
    found = []
    for page in site.rglob("*.html"):
        found += [f"{page.relative_to(site)}: {one}" for one in loads(page.read_text())]
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        if "@import" in text or "url(http" in text or 'url("http' in text or "url(//" in text:
            found.append(f"{sheet.relative_to(site)}: a style sheet that loads from elsewhere")
    return sorted(found)


def main(arguments: list[str]) -> int:
    site = Path(arguments[0])
    if not (site / "index.html").exists():
        sys.stderr.write(f"{site} has no index.html: run `make docs`\n")
        return 1
    found = outside_loads(site)
    for line in found:
        sys.stderr.write(f"loaded from elsewhere: {line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
