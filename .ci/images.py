"""
Makes the pictures of docs/images again, in headless Chromium: make images.

The pages come from what the repository keeps. ``pages.sha256`` beside the pictures has a hash of each page that they
were made of, with the hashes of its scripts in its head, so that a test knows without a browser whether they are stale.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from layoutdoctor import examine_trace, load  # noqa: E402
from layoutdoctor.reports.html import render_html  # noqa: E402

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

FOLDER = ROOT / "docs" / "images"
HASHES = FOLDER / "pages.sha256"
DIAGNOSIS = FOLDER / "conv3d_stack.json.gz"
TRACE = ROOT / "tests" / "traces" / "mi300_resnet_act_checkpoint.json.gz"


class Picture(NamedTuple):
    """One picture: of which page, how wide, in which colours, and from which section on."""

    source: Path
    width: int
    height: int
    scheme: str
    section: str | None = None


PICTURES = {
    "report-light.png": Picture(DIAGNOSIS, 1100, 1250, "light"),
    "report-phone-dark.png": Picture(TRACE, 360, 1000, "dark"),
    "report-flow-dark.png": Picture(TRACE, 1100, 900, "dark", "flow"),
}


def page_of(source: Path) -> str:
    """The HTML report of a saved diagnosis, or of a trace."""
    content = json.loads(gzip.decompress(source.read_bytes()))
    diagnosis: Diagnosis = load(source) if "schema_version" in content else examine_trace(source)
    return render_html(diagnosis)


def hashes() -> str:
    """One line for each source of a page: the hash of what a picture may show of it, style and scripts counted."""
    sources = dict.fromkeys(picture.source for picture in PICTURES.values())
    shown = {source: page_of(source).partition('<section id="details"')[0] for source in sources}
    return "".join(f"{hashlib.sha256(page.encode()).hexdigest()}  {source.name}\n" for source, page in shown.items())


def main() -> int:
    """Writes the pictures and the hashes of their pages."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("error: no chromium or google-chrome on the PATH; install one (Debian: apt install chromium)")
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, picture in PICTURES.items():
            file = Path(folder, "report.html")
            file.write_text(page_of(picture.source), encoding="utf-8")
            size = {"width": picture.width, "height": picture.height}
            page = browser.new_page(viewport=size, color_scheme=picture.scheme)
            page.goto(file.as_uri() + (f"#{picture.section}" if picture.section else ""))
            page.wait_for_timeout(1000)  # the charts are drawn when they come into view
            page.screenshot(path=FOLDER / name)
            page.close()
        browser.close()
    HASHES.write_text(hashes(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
