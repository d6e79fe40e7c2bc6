"""Opens every page of the built site in Chromium and says what is wrong there.

    python docs/check_pages.py [SITE] [--only docs/masks] [--workers 2]

SITE is the folder that `make docs` writes. Each page is opened wide and narrow, light and dark. Faults are an error in
the console, a file that is missing, a page that is wider than its window, a formula or a picture that does not show
whole, and a Korean word that is broken in the middle. axe-core (in axe-playwright-python) adds the rules of WCAG 2 A
and AA. Pages are files: nothing is loaded from the network.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tqdm
from axe_playwright_python.sync_playwright import Axe
from draw_motion import BROWSERS, browser
from playwright.sync_api import sync_playwright

SITE = Path(__file__).resolve().parent / "_build" / "html"
WINDOWS = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}
SCHEMES = ("light", "dark")
FORWARDS = b'http-equiv="refresh"'  # a page that leads to another one at once
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "preload": False,  # a page that is a file may not read its style sheets
}
FAULTS = """() => {
  const faults = [];
  const root = document.documentElement;
  const name = (node) => node.outerHTML.replace(/\\s+/g, " ").slice(0, 100);
  const scrolls = (node) => /auto|scroll|hidden|clip/.test(getComputedStyle(node).overflowX);
  if (root.scrollWidth > innerWidth + 1) {
    const free = (node) => {
      for (let up = node.parentElement; up; up = up.parentElement) if (scrolls(up)) return false;
      return true;
    };
    const wide = [...document.body.querySelectorAll("*")]
      .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && free(node));
    const last = wide.length ? name(wide.at(-1)) : "";
    faults.push(`${root.scrollWidth} pixels wide in a window of ${innerWidth}: ${last}`);
  }
  for (const math of document.querySelectorAll("math")) {
    const box = math.getBoundingClientRect();
    for (let up = math.parentElement; up; up = up.parentElement) {
      const style = getComputedStyle(up), around = up.getBoundingClientRect();
      const cut = (value, outside) => outside > 1 && /hidden|clip/.test(value);
      if (cut(style.overflowX, box.right - around.right) || cut(style.overflowY, box.bottom - around.bottom)
          || (style.overflowX === "auto" && style.overflowY === "auto" && up.scrollHeight > up.clientHeight + 1
              && up.matches("div.math"))) {
        faults.push(`a formula is cut: ${math.textContent.slice(0, 60)}`);
        break;
      }
    }
  }
  for (const image of document.querySelectorAll("article img"))
    if (image.complete && !image.naturalWidth) faults.push(`a picture is missing: ${image.getAttribute("src")}`);
  const texts = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    if (!text.parentElement.checkVisibility() || text.parentElement.closest("pre, svg, script, style")) continue;
    for (const word of text.data.matchAll(/[가-힣]+/g)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
        faults.push(`a word is broken: ${word[0]} in ${text.data.trim().slice(0, 40)}`);
    }
  }
  return faults;
}"""


def faults_of(page, address):
    """Opens a page in each window and colour scheme.

    Args:
        page: A page of Playwright.
        address: Address of the page, a str.

    Returns:
        A dict from the text of a fault to the windows and schemes in which it was seen.
    """
    faults, place = {}, "opened"

    def add(fault):
        places = faults.setdefault(fault, [])
        if place not in places:
            places.append(place)

    listeners = {
        "console": lambda message: add(f"console: {message.text}") if message.type == "error" else None,
        "pageerror": lambda error: add(f"error: {error}"),
        "requestfailed": lambda request: add(f"not loaded: {request.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.set_viewport_size(WINDOWS["wide"])
    page.goto(address)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for window, size in WINDOWS.items():
            place = f"{window} {scheme}"
            page.set_viewport_size(size)
            for fault in page.evaluate(FAULTS):
                add(fault)
        for violation in Axe().run(page, options=RULES).response["violations"]:
            nodes = violation["nodes"]
            add(
                f"{violation['id']} ({violation['help']}), {len(nodes)} times, first: {nodes[0]['html'][:160]}"
            )
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return faults


def check(program, files, site, progress):
    """Prints the faults of each page as soon as they are found; returns the number of pages with faults."""
    count = 0
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--disable-background-networking"]
        )
        page = chromium.new_page()
        for file in files:
            if faults := faults_of(page, file.as_uri()):
                count += 1
                lines = [f"  {', '.join(places)}: {fault}" for fault, places in faults.items()]
                progress.write("\n".join([str(file.relative_to(site)), *lines]))
            progress.update()
        chromium.close()
    return count


def main(arguments=None):
    """Prints the faults; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", nargs="?", type=Path, default=SITE, help="folder of the site")
    parser.add_argument("--only", default="", help="beginning of the paths of the pages to open")
    parser.add_argument("--workers", type=int, default=2, help="browsers at a time")
    options = parser.parse_args(arguments)
    program = browser()
    if program is None:
        parser.error(f"No browser is installed. Looked for: {', '.join(BROWSERS)}.")
    site = options.site.resolve()
    files = [
        file
        for file in sorted(site.rglob("*.html"))
        if str(file.relative_to(site)).startswith(options.only) and FORWARDS not in file.read_bytes()
    ]
    if not files:
        parser.error(f"SITE must have pages that begin with {options.only!r}. Received: {site}.")
    shares = [files[start :: options.workers] for start in range(options.workers)]
    with tqdm.tqdm(total=len(files), unit="page") as progress, ThreadPoolExecutor(options.workers) as pool:
        count = sum(pool.map(lambda part: check(program, part, site, progress), shares))
    print(f"{len(files)} pages opened in {len(WINDOWS)} windows, light and dark: {count} have faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
