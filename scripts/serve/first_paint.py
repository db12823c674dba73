#!/usr/bin/env python3
"""When a headless Chromium paints a dashboard for the first time: first_paint.py URL [LOADS].

Prints one JSON line: medians over LOADS (5) loads, each by a browser that has just been started and has nothing in its cache:
first contentful paint and the overview's first chart, milliseconds after the navigation began (Performance API), and bytes of
everything that was loaded until then."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


class Browser:
    """Headless Chromium, driven by its own protocol over a pipe."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        commands, self.to = os.pipe()
        self.answers, events = os.pipe()
        script = 'exec "$@" 3<&%d 4>&%d' % (commands, events)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-sync",
                   "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
                   "--user-data-dir=" + self.profile]
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if not program:
            sys.exit("chromium is needed: apt-get install chromium")
        self.process = subprocess.Popen(["bash", "-c", script, "bash", program, *options], pass_fds=(commands, events),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(events)
        self.last, self.buffer, self.session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                part = os.read(self.answers, 65536)
                if not part:
                    sys.exit("the browser has ended")
                self.buffer += part
            line, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self.last:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)


WATCH = """new MutationObserver((_, me) => {
    if (document.querySelector('#main svg path')) { self.drawn = performance.now(); me.disconnect(); }
}).observe(document, {childList: true, subtree: true});"""
SEEN = """JSON.stringify([performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)[0], self.drawn,
    [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .reduce((sum, e) => sum + e.transferSize, 0)])"""


def load(url):
    browser = Browser()
    try:
        browser.call("Page.enable")
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        browser.call("Page.navigate", url=url)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            seen = json.loads(browser.value(SEEN))
            if None not in seen:
                return seen
            time.sleep(0.05)
        sys.exit(f"nothing was drawn within a minute: {seen}")
    finally:
        browser.close()


seen = [load(sys.argv[1]) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5)]
paint, drawn, size = (statistics.median(values) for values in zip(*seen))
print(json.dumps({"first_paint_ms": round(paint), "first_chart_ms": round(drawn), "bytes": int(size)}))
