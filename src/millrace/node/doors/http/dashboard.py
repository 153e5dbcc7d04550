"""The dashboard at `/`: files that `npm run build` in the folder `dashboard/` leaves beside this module.

Only what the build wrote is served: the name in the address is looked up in a list of the folder and never
becomes a path. Names of assets carry a hash of their content, so a browser may keep them; the page itself is
asked for each time, so that it names the assets of the program that runs. Everything here is public: it says
nothing of the node, and what it shows it asks of the API, which asks who is calling.
"""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response

from millrace.node.doors.http.guard import PAGE_POLICY
from millrace.node.doors.http.problems import Problem

router = APIRouter(include_in_schema=False)

BUILT = Path(__file__).resolve().parent / "assets" / "dashboard"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE_HEADERS = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
_ASSET_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cache-Control": "public, max-age=31536000, immutable",
}
_MISSING = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Millrace</title></head>
<body>
<h1>Millrace</h1>
<p>This node runs. Its dashboard was not built: install npm, run <code>make setup</code>, and load this page
again.</p>
<p>The HTTP API is described <a href="/docs">here</a>; the command <code>millrace status</code> shows the
cluster.</p>
</body>
</html>
"""


@router.api_route("/", methods=["GET", "HEAD"])
def page() -> Response:
    """The one page; what follows `#` in the address is the page's own business."""
    index = BUILT / "index.html"
    if not index.is_file():
        return HTMLResponse(_MISSING, headers=_PAGE_HEADERS)
    return FileResponse(index, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)


@router.api_route("/assets/{name:path}", methods=["GET", "HEAD"])
def asset(name: str) -> FileResponse:
    path = _assets().get(name)
    if path is None:
        raise Problem(404, f"there is no /assets/{name}")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_ASSET_HEADERS)


def _assets() -> dict[str, Path]:
    """The files of the build by name, those of a known type. It is a handful: listing them is no work."""
    folder = BUILT / "assets"
    if not folder.is_dir():
        return {}
    return {path.name: path for path in folder.iterdir() if path.suffix in _TYPES and path.is_file()}
