#!/usr/bin/env python3
"""Opens the book's pages in headless Chromium and says what is wrong with them.

usage: tests/check_pages.py [--axe AXE.JS] FOLDER [PAGE...]    FOLDER: build/book/html; PAGEs: names in it, all of them if none is named

Without the browser: every link, anchor, image, script and style of every page leads somewhere; ids are unique; nothing is fetched from
elsewhere. In it, at 1280 and 390 pixels, light and dark: no page scrolls sideways, no error on the console, images load,
text has contrast, headings go down by one, everything that can be operated has a name, and search and the arrow keys work.
With --axe, axe-core has its say too. One line a fault, `PAGE: what`; then TAP, one test a kind of fault.
"""
import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse

WIDTHS = (1280, 390)
KINDS = {
    "links": "every link and anchor leads somewhere",
    "ids": "ids are unique",
    "outside": "nothing is fetched from elsewhere",
    "form": "pages have a language, a title, landmarks and a skip link",
    "overflow": "no page scrolls sideways at 1280 or 390 pixels",
    "console": "no errors on the console",
    "images": "images load",
    "headings": "headings go down by one",
    "names": "images, fields, buttons and links have names",
    "contrast": "text has contrast in light and dark",
    "script": "search finds, and the arrow keys turn the page",
    "axe": "axe-core finds nothing serious",
}
faults = {kind: [] for kind in KINDS}


def fault(kind, page, what):
    faults[kind].append(f"{page}: {what}")


# ---- without the browser

class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched, self.tags = [], [], [], set()
        self.lang = self.title = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        self.tags.add(tag)
        if a.get("id"):
            self.ids.append(a["id"])
        if tag == "html":
            self.lang = a.get("lang")
        if tag == "a" and a.get("class") == "skip":
            self.tags.add("skip")
        if tag == "a" and "href" in a:
            self.links.append(a["href"])
        for name in ("src", "srcset", "data", "poster"):
            if a.get(name) and tag != "a":
                self.fetched.append(a[name])
        if tag == "link" and a.get("href"):
            (self.links if a.get("rel") in ("prev", "next") else self.fetched).append(a["href"])

    def handle_data(self, data):
        if self.rawdata and self.lasttag == "title" and self.title is None and data.strip():
            self.title = data.strip()


def static(folder, names):
    pages = {}
    for base, _, files in os.walk(folder):
        for name in files:
            if name.endswith(".html"):
                path = os.path.join(base, name)
                with open(path, encoding="utf-8") as f:
                    pages[os.path.relpath(path, folder)] = Page(f.read())
    for name in names or sorted(pages):
        page = pages[name]
        seen = set()
        for i in page.ids:
            if i in seen:
                fault("ids", name, f"id {i} twice")
            seen.add(i)
        if not page.lang or not page.title:
            fault("form", name, "no language or no title")
        for tag in ("main", "nav", "h1", "skip"):
            if tag not in page.tags:
                fault("form", name, f"no {tag}")
        for link in page.links + page.fetched:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.fetched:
                    fault("outside", name, f"fetches {link}")
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), urllib.parse.unquote(url.path))) if url.path else name
            if target not in pages:
                if not os.path.exists(os.path.join(folder, target)):
                    fault("links", name, f"dead link {link}")
            elif url.fragment and urllib.parse.unquote(url.fragment) not in pages[target].ids:
                fault("links", name, f"no anchor {link}")
    return names or sorted(pages)


# ---- in the browser: the DevTools protocol over two pipes, so nothing but Chromium is needed

class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pages.", ignore_cleanup_errors=True)
        from_us, ours = os.pipe()
        theirs, to_them = os.pipe()

        def pipes():
            os.dup2(from_us, 203)
            os.dup2(to_them, 204)
            os.dup2(203, 3)
            os.dup2(204, 4)

        self.process = subprocess.Popen(
            [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_them)
        self.out, self.into, self.rest, self.count = ours, theirs, b"", 0
        self.events, self.session = [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.rest:
            data = os.read(self.into, 1 << 20)
            if not data:
                raise RuntimeError("chromium has gone")
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.count += 1
        request = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            m = self.message()
            if m.get("id") == self.count:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']}")
                return m["result"]
            self.events.append(m)

    def wait(self, method):
        while True:
            for i, m in enumerate(self.events):
                if m.get("method") == method:
                    del self.events[i]
                    return m
            self.events.append(self.message())

    def run(self, script):
        r = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(json.dumps(r["exceptionDetails"])[:500])
        return r["result"].get("value")

    def open(self, url):
        self.events = []
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def errors(self):
        for m in self.events:
            p = m.get("params", {})
            if m.get("method") == "Runtime.exceptionThrown":
                yield p["exceptionDetails"]["text"]
            elif m.get("method") == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert"):
                yield str(p["args"])[:200]
            elif m.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error":
                yield p["entry"]["text"]

    def close(self):
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass
        self.process.wait(20)
        self.folder.cleanup()


# A phone zooms out where a page is too wide, and innerWidth with it: so the width is the one that was asked for.
OVERFLOW = """((room) => {
  const wide = document.documentElement.scrollWidth;
  if (wide <= room) return [];
  const scrolls = (e) => { for (e = e.parentElement; e && e !== document.body; e = e.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true; return false; };
  const guilty = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > room + 1 && !scrolls(e));
  return [`${wide} pixels in ${room}: ` + guilty.slice(0, 3).map((e) => e.outerHTML.slice(0, 80)).join(' | ')];
})"""

FORM = """(() => {
  const say = [], name = (e) => (e.getAttribute('aria-label') || e.textContent || '').trim();
  let level = 0;
  for (const h of document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')) {
    const n = +h.tagName[1];
    if (n > level + 1) say.push(['headings', `h${n} after h${level}: ${h.textContent.slice(0, 60)}`]);
    level = n;
  }
  for (const i of document.images) {
    if (!i.complete || !i.naturalWidth) say.push(['images', `${i.src} does not load`]);
    if (!i.alt) say.push(['names', `an image without a text: ${i.src}`]);
  }
  for (const s of document.querySelectorAll('svg'))
    if (!s.getAttribute('aria-label') && !s.closest('[aria-hidden=true]')) say.push(['names', 'a figure without a text']);
    else if (s.getBoundingClientRect().width < 50) say.push(['images', 'a figure has no size']);
  for (const i of document.querySelectorAll('input, select, textarea'))
    if (!i.getAttribute('aria-label') && !i.labels.length) say.push(['names', 'a field without a label']);
  for (const e of document.querySelectorAll('a[href]:not([aria-hidden=true]), button, summary'))
    if (!name(e)) say.push(['names', `nameless: ${e.outerHTML.slice(0, 100)}`]);
  for (const e of document.querySelectorAll('nav'))
    if (!e.getAttribute('aria-label')) say.push(['names', 'a nav without a label']);
  for (const e of document.querySelectorAll('[aria-hidden=true]'))
    if (e.matches('a[href], button, input') && e.tabIndex >= 0) say.push(['names', `hidden, yet the tab key stops at it: ${e.outerHTML.slice(0, 80)}`]);
  return say;
})()"""

# WCAG's contrast of every distinct combination of colours: 4.5, or 3 for large text. In a figure a text's ground is the last shape under its middle.
CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true }), known = {};
  const rgba = (c) => { if (known[c]) return known[c]; canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return known[c] = [d[0], d[1], d[2], d[3] / 255]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + .05) / (Math.min(x, y) + .05); };
  const grounds = new Map();
  const ground = (e) => { if (!e) return [255, 255, 255, 1]; if (grounds.has(e)) return grounds.get(e);
    const own = rgba(getComputedStyle(e).backgroundColor), all = own[3] === 1 ? own : over(own, ground(e.parentElement)); grounds.set(e, all); return all; };
  const say = new Map();
  const check = (e, ink, paper, size, bold) => { const r = ratio(over(ink, paper), paper), least = size >= 24 || bold && size >= 18.66 ? 3 : 4.5;
    if (r < least) { const key = `${ink}/${paper}`; if (!say.has(key)) say.set(key, `${r.toFixed(2)} of ${least}: "${e.textContent.trim().slice(0, 40)}" ${ink.slice(0, 3)} on ${paper.slice(0, 3)} in ${e.closest('[id]')?.id}`); } };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), seen = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(e) || e.closest('svg, script, style')) continue;
    seen.add(e);
    const s = getComputedStyle(e);
    if (s.visibility !== 'hidden' && s.display !== 'none') check(e, rgba(s.color), ground(e), parseFloat(s.fontSize), s.fontWeight >= 600);
  }
  for (const svg of document.querySelectorAll('main svg')) {
    const base = ground(svg), shapes = [...svg.querySelectorAll('rect, path, circle, polygon, ellipse')].map((x) => [x, x.getBoundingClientRect(), getComputedStyle(x)])
      .filter(([x, , s]) => s.fill !== 'none' && !x.closest('defs, marker, clipPath'));
    const marks = [...svg.querySelectorAll('*')];
    const order = new Map(marks.map((x, i) => [x, i]));
    for (const t of svg.querySelectorAll('text')) {
      if (!t.textContent.trim()) continue;
      const b = t.getBoundingClientRect(), x = (b.left + b.right) / 2, y = (b.top + b.bottom) / 2;
      if (!b.width) continue;
      let paper = base;
      for (const [shape, r, s] of shapes) {
        if (r.left > x || r.right < x || r.top > y || r.bottom < y || order.get(shape) > order.get(t)) continue;
        const m = shape.getScreenCTM(), at = m && new DOMPoint(x, y).matrixTransform(m.inverse());
        if (at && !shape.isPointInFill(at)) continue;
        const f = rgba(s.fill);
        paper = over([f[0], f[1], f[2], f[3] * parseFloat(s.fillOpacity || 1) * parseFloat(s.opacity || 1)], paper);
      }
      const s = getComputedStyle(t);
      check(t, rgba(s.fill), paper, 16, s.fontWeight >= 600);
    }
  }
  return [...say.values()];
})()"""

SEARCH = """(async () => {
  const input = document.querySelector('.search input'), wait = (ms) => new Promise((f) => setTimeout(f, ms));
  if (!input) return 'no search field';
  input.focus();
  input.value = document.querySelector('main h1').textContent.trim().split(/\\s+/).pop();
  for (let i = 0; i < 40; i++) {
    input.dispatchEvent(new Event('input'));
    if (document.querySelector('.search li a')) break;
    await wait(50);
  }
  const found = document.querySelector('.search li a');
  if (!found) return `search does not find ${input.value}`;
  const where = found.href;
  input.value = '';
  input.dispatchEvent(new Event('input'));
  input.blur();
  const next = document.querySelector('link[rel=next]');
  return { where, next: next && next.href };
})()"""

AXE = """axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations
  .filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id} (${v.impact}, ${v.nodes.length}): ${v.nodes[0].html.slice(0, 140)}`))"""


def in_browser(folder, names, axe):
    browser = Browser()
    axe_text = open(axe, encoding="utf-8").read() if axe else None
    turned = False
    for name in names:
        url = "file://" + urllib.parse.quote(os.path.abspath(os.path.join(folder, name)))
        browser.call("Emulation.setDeviceMetricsOverride", width=WIDTHS[0], height=900, deviceScaleFactor=1, mobile=False)
        browser.open(url)
        for kind, what in browser.run(FORM):
            fault(kind, name, what)
        for scheme in ("light", "dark"):
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for what in browser.run(CONTRAST):
                fault("contrast", name, f"{scheme}: {what}")
        for width in WIDTHS:
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
            for scheme in ("light", "dark"):
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                for what in browser.run(f"{OVERFLOW}({width})"):
                    fault("overflow", name, f"{width}, {scheme}: {what}")
                if axe_text and name != "book.html":
                    if not browser.run("typeof axe === 'object'"):
                        browser.run(axe_text + "; 0")
                    for what in browser.run(AXE):
                        fault("axe", name, f"{width}, {scheme}: {what}")
        for what in browser.errors():
            fault("console", name, what)
        # Search and keys once a page of the book's own, the turn of the page once at all.
        if not name.startswith("src/") and name != "book.html":
            found = browser.run(SEARCH)
            if isinstance(found, str):
                fault("script", name, found)
            elif found["next"] and not turned:
                turned = True
                browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
                browser.wait("Page.loadEventFired")
                at = browser.run("location.href")
                if at != found["next"]:
                    fault("script", name, f"the right arrow leads to {at}")
    browser.close()
    if not turned and len(names) > 2:
        fault("script", names[0], "no page has a next one")


def main():
    arguments = sys.argv[1:]
    axe = None
    if arguments[:1] == ["--axe"]:
        axe = arguments[1]
        arguments = arguments[2:]
    if not arguments:
        sys.exit(__doc__)
    folder, names = arguments[0], arguments[1:]
    names = static(folder, names)
    if not names:
        sys.exit(f"{folder}: no pages")
    in_browser(folder, names, axe)
    failed = number = 0
    for kind, what in KINDS.items():
        if kind == "axe" and not axe:
            continue
        number += 1
        bad = faults[kind]
        for line in bad[:40]:
            print(f"#   {line}")
        failed += bool(bad)
        print(f"{'not ok' if bad else 'ok'} {number} - {what} ({len(names)} pages)")
    print(f"1..{number}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
