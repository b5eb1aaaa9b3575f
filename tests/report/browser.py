"""A page in headless Chromium at several widths: what it logs, what sticks out, what overlaps."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         "--virtual-time-budget=8000")  # fmt: skip
# Frames of a width are what media queries see; windows cannot be made narrower than 500 pixels.
FRAME = '<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>'
LOOK = """
<pre id="found"></pre>
<script>
const texts = (page) => {
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest("style, title")) continue;
    if (!parent.checkVisibility()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width && box.height) found.push({ box, text: node.textContent.trim().slice(0, 40),
        rolls: !!parent.closest(".scroll") });
    }
  }
  return found;
};
const meet = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
const look = (frame, open) => {
  frame.contentDocument.querySelectorAll("details").forEach((each) => { each.open = open; });
  const page = frame.contentDocument, all = texts(page), width = frame.clientWidth;
  const overlaps = [];
  all.forEach((a, i) => all.slice(i + 1).forEach((b) => {
    if (meet(a.box, b.box)) overlaps.push([a.text, b.text]);
  }));
  return {
    width, overlaps: overlaps.slice(0, 9), scroll: page.documentElement.scrollWidth,
    outside: all.filter((t) => !t.rolls && (t.box.right > width + 0.5 || t.box.left < 0))
      .map((t) => t.text).slice(0, 9),
    texts: all.length,
    background: getComputedStyle(page.body).backgroundColor,
  };
};
addEventListener("load", () => {
  document.getElementById("found").textContent =
    JSON.stringify([...document.querySelectorAll("iframe")]
      .flatMap((frame) => [look(frame, false), look(frame, true)]));
});
</script>
"""


@dataclass(frozen=True)
class Seen:
    """What a browser found: two rows for each width, folded and unfolded; what it logged."""

    rows: list[dict[str, Any]]
    logged: list[str]


def seen(page: str, widths: tuple[int, ...], folder: Path, *flags: str) -> Seen:
    """Returns what Chromium sees of a page in frames of some widths."""
    frames = "".join(FRAME.format(width=width, page=escape(page)) for width in widths)
    (folder / "frames.html").write_text(f"<!doctype html><body>{frames}{LOOK}", encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, (folder / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    text = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Seen(json.loads(text), logged)
