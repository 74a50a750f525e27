"""The built documentation, as a real browser sees it."""

from __future__ import annotations

import http.server
import json
import queue
import subprocess
import threading
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from support.browser import BROWSER, FLAGS

# Runs before anything else in every page.
WATCH = """<script>
window.problems = [];
const source = (event) => event.message || event.target.src || event.target.href;
addEventListener("error", (event) => problems.push("error: " + source(event)), true);
addEventListener("unhandledrejection", (event) => problems.push("rejected: " + event.reason));
for (const kind of ["error", "warn"]) {
  const before = console[kind];
  console[kind] = (...words) => { problems.push(kind + ": " + words.join(" ")); before(...words); };
}
</script>"""
# Opens one page after the other in a frame of a given width, and reports what it finds.
VISIT = """<!doctype html><iframe id="frame" style="width:WIDTHpx;height:900px;border:0"></iframe><script>
const frame = document.getElementById("frame"), report = {};
const open = (page) => new Promise((done) => { frame.onload = () => setTimeout(done, 150); frame.src = page; });
(async () => {
  for (const page of PAGES) {
    await open("/" + page);
    const inner = frame.contentWindow, root = inner.document.documentElement;
    report[page] = {
      title: inner.document.title,
      problems: inner.problems,
      requests: inner.performance.getEntriesByType("resource").map((entry) => entry.name),
      overflow: root.scrollWidth - root.clientWidth,
      text: inner.document.querySelector("article, body").innerText.length,
    };
  }
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
})();
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site with `WATCH` in every page, the page that visits all others, and takes its report."""

    def __init__(self, *args: Any, visit: str, reports: queue.Queue[bytes], **options: Any):
        self._visit, self._reports = visit, reports
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.path == "/visit":
            self._answer(self._visit)
        elif path.suffix == ".html" and path.exists():
            self._answer(path.read_text("utf-8").replace("<head>", "<head>" + WATCH, 1))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self._reports.put(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer("")

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def visit(site: Path, pages: list[str], width: int, folder: Path) -> tuple[str, dict[str, Any]]:
    """Open pages in a browser; return the address of the site, and for every page what was found in it."""
    reports: queue.Queue[bytes] = queue.Queue()
    text = VISIT.replace("WIDTH", str(width)).replace("PAGES", json.dumps(pages))
    handler = partial(_Handler, directory=str(site), visit=text, reports=reports)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        options = (f"--user-data-dir={folder / 'browser'}", f"--window-size={width + 40},1000")
        # A page that is dumped when its time is over would end too soon; this one ends when it has reported.
        command = [BROWSER, *FLAGS, *options, "--remote-debugging-port=0", f"{address}/visit"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return address, json.loads(reports.get(timeout=240))
        finally:
            browser.terminate()
            browser.wait(timeout=30)
            server.shutdown()


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and not (tag == "link" and value.startswith("http")):
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Return all links of a site to its own pages and files that lead nowhere."""
    pages = {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme or name == "404.html":
                continue
            target, anchor = urldefrag(urljoin(f"/{name}", link))
            path = unquote(target).lstrip("/").partition("?")[0]
            anchor = unquote(anchor)
            is_there = (site / path).exists() and (not anchor or path not in pages or anchor in pages[path].anchors)
            if not is_there and anchor != "__codelineno":
                broken.append(f"{name}: {link}")
    return broken
