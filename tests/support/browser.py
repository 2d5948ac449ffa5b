"""Headless Chromium: a page is opened, a script runs in it after loading, and what it returns comes back as JSON."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Clicks as a person does: at the middle of an element, on whatever lies on top there.
_HELPERS = """
const clickAt = (x, y) => document.elementFromPoint(x, y).dispatchEvent(
  new MouseEvent("click", { bubbles: true, clientX: x, clientY: y }));
const click = (element) => {
  element.scrollIntoView({ block: "center" });
  const box = element.getBoundingClientRect();
  clickAt(box.x + box.width / 2, box.y + box.height / 2);
};
const drawn = async (figure) => {
  figure.scrollIntoView();
  for (let tries = 0; tries < 9999 && !figure.dataset.drawn; tries++) await new Promise((done) => setTimeout(done, 20));
  return figure;
};
"""


def chromium() -> str:
    """The browser; skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(_NAMES)} is on the PATH")
    return found


def run_in(page: Path, script: str, width: int = 1400):
    """What the body ``script`` of a function returns in the page, in a frame of so many pixels."""
    run = (
        f'<script>addEventListener("load", async () => {{ {_HELPERS}\nlet found;'
        f"try {{ found = await (async () => {{ {script} }})(); }} catch (error) {{ found = String(error.stack); }}"
        'parent.postMessage(JSON.stringify(found), "*"); });</script></body>'
    )
    probed, frame = page.with_name("probed.html"), page.with_name("frame.html")
    before, _, after = page.read_text(encoding="utf-8").rpartition("</body>")
    probed.write_text(f"{before}{run}{after}", encoding="utf-8")
    frame.write_text(
        '<body style="margin:0"><pre id="out"></pre><script>addEventListener("message", (event) => {'
        'document.getElementById("out").textContent = event.data; });</script>'
        f'<iframe src="probed.html" style="width:{width}px;height:900px;border:0"></iframe></body>',
        encoding="utf-8",
    )
    for budget_ms in (10_000, 60_000, 240_000):  # a busy machine draws while the browser's own time goes on
        command = [
            chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={max(width, 500)},1000",
            f"--virtual-time-budget={budget_ms}", "--dump-dom", frame.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        out = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)
        if out and out[1]:
            return json.loads(html.unescape(out[1]))
    raise AssertionError(f"the page says nothing: {done.stderr[-2000:]}")
