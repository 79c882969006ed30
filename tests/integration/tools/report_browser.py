#!/usr/bin/env python3
"""olpagestat --report in a real browser: what is drawn, hovered and zoomed; in the dark; without a network.

report_browser.py --olpagestat P --olrun P --program P [--keep FOLDER]

--keep: pictures of the page are put there, to be looked at.
Exit: 77 where Chromium is not installed (tools/setup --test).
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

import browser

LONG = 60
# What a page would take for its own, were it not told as text.
NAME = "<!--<script><img src=x onerror=stop()>\"&amp;"
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


def report(options, scratch):
    """Of a program that has four times its VRAM budget."""
    env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch)
    path = os.path.join(scratch, "out.html")
    folder = os.path.join(scratch, "olpager")
    reporter = subprocess.Popen([options.olpagestat, "--folder", folder, "--report", path, "--duration", str(LONG)], stderr=subprocess.PIPE,
                                text=True)
    named = os.path.join(scratch, NAME)
    os.symlink(os.path.abspath(options.program), named)
    program = subprocess.run([options.olrun, "--driver", "sim", "--vram", "16MiB", "--", named, "--bytes", str(64 << 20)], env=env,
                             capture_output=True, text=True, timeout=LONG, check=False)
    check(program.returncode == 0, f"the program: {program.stdout}{program.stderr}")
    reporter.terminate()
    errors = reporter.communicate(timeout=LONG)[1]
    check(reporter.returncode == 0, f"olpagestat --report: {errors}")
    return path


def pixels(page, name):
    """How many pixels of each colour a plot has."""
    return page.value("""(() => {
        const canvas = olpagestat.plots.find(plot => plot.name === '%s').ctx.canvas;
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data, found = {};
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) {
                const colour = '#' + [0, 1, 2].map(at => data[i + at].toString(16).padStart(2, '0')).join('');
                found[colour] = (found[colour] ?? 0) + 1;
            }
        return found; })()""" % name)


def middle(page, name, share=0.5):
    """A point of a plot, and how wide the plot is."""
    page.value(f"document.querySelector('[data-plot={name}]').scrollIntoView({{block: 'center'}})")
    return page.value("""(() => { const box = document.querySelector('[data-plot=%s] .u-over').getBoundingClientRect();
        return {x: box.x + box.width * %f, y: box.y + box.height / 2, width: box.width}; })()""" % (name, share))


def span(page, name):
    return page.value("(({min, max}) => max - min)(olpagestat.plots.find(plot => plot.name === '%s').scales.x)" % name)


def look(options, page, path):
    page.open(path)
    check(page.value("document.querySelector('h2').firstChild.textContent.trim()") == NAME and page.value("document.images.length") == 0,
          f"a program's name is more than text: {page.value('document.querySelector(`h2`).outerHTML')}")
    names = page.value("olpagestat.plots.map(plot => plot.name)")
    check(names == ["residency", "bytes", "extents", "hits", "waits", "map"], f"plots: {names}")
    check(page.value("document.querySelector('section li[data-finding=budget]') !== null"), "no finding of the budget")
    text = page.value("document.body.innerText")
    check(re.search(r"OL_VRAM\s+16777216|OL_VRAM\s+16MiB", text) and "VRAM budget of GPU 0" in text, f"no settings: {text[-1500:]}")
    places = page.value("(selector => [...document.querySelector('section').querySelectorAll(selector)].map(one => one.className))"
                        "('.findings, .plot, .settings')")
    check(places[0] == "findings" and places[-1] == "settings", f"the findings are not on top: {places}")
    # Each tier has its area, and the budget a line over them.
    drawn = pixels(page, "residency")
    for what, colour, least in (("VRAM", "#2a9d5c", 2000), ("host RAM", "#3b6fd4", 2000), ("the budget", "#1c1c1c", 300)):
        check(drawn.get(colour, 0) >= least, f"{what}: {drawn.get(colour, 0)} pixels")
    check(sum(pixels(page, "map").get(colour, 0) for colour in ("#2a9d5c", "#3b6fd4")) > 20000, "the map is empty")
    check(pixels(page, "waits").get("#3b6fd4", 0) > 500, "no bars of waits")
    # The figures of the moment under the pointer, in all plots of the program.
    at = middle(page, "residency")
    page.mouse("mouseMoved", at["x"], at["y"])
    legend = "document.querySelector('[data-plot=%s] .u-legend').innerText"
    told = page.value(legend % "residency")
    check(re.search(r"VRAM\b\D*[\d.]+ MiB", told) and re.search(r"VRAM budget\D*16 MiB", told), f"under the pointer: {told}")
    told = page.value(legend % "bytes")
    check(re.search(r"time\D*[\d.]+ s", told), f"in another plot: {told}")
    at = middle(page, "map")
    page.mouse("mouseMoved", at["x"], at["y"])
    told = page.value("document.querySelector('[data-plot=map] p.dim').innerText")
    check(re.match(r"[\d.]+ s: (VRAM|host memory|empty|coming in|going out)", told), f"under the pointer in the map: {told}")
    # A series of the stack goes and comes.
    page.value("document.querySelectorAll('[data-plot=residency] .u-series th')[4].click()")
    check(pixels(page, "residency").get("#2a9d5c", 0) == 0, "VRAM is drawn though it was put away")
    page.value("document.querySelectorAll('[data-plot=residency] .u-series th')[4].click()")
    check(pixels(page, "residency").get("#2a9d5c", 0) >= 2000, "VRAM did not come back")
    # Zoom: all plots of the program show the same time.
    before = span(page, "residency")
    start, end = middle(page, "bytes", 0.25), middle(page, "bytes", 0.75)
    page.mouse("mouseMoved", start["x"], start["y"])
    page.mouse("mousePressed", start["x"], start["y"], button="left", clickCount=1)
    page.mouse("mouseMoved", end["x"], end["y"], buttons=1)
    page.mouse("mouseReleased", end["x"], end["y"], button="left", clickCount=1)
    for name in ("bytes", "residency", "map"):
        share = span(page, name) / before
        check(0.45 < share < 0.55, f"{name} shows {share:.2f} of the time")
    at = middle(page, "bytes")
    page.click(at["x"], at["y"], times=2)
    check(abs(span(page, "residency") - before) < 1e-6, "two clicks do not show all again")
    # Narrower.
    page.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    page.value("dispatchEvent(new Event('resize'))")
    check(page.value("document.documentElement.scrollWidth <= innerWidth"), "wider than a narrow window")
    page.call("Emulation.clearDeviceMetricsOverride")
    page.value("dispatchEvent(new Event('resize'))")
    if options.keep:
        page.picture(os.path.join(options.keep, "light.png"))
    # In the dark: by the system's wish, and by the button.
    back = "getComputedStyle(document.body).backgroundColor"
    check(page.value(back) == "rgb(255, 255, 255)", f"light: {page.value(back)}")
    page.call("Emulation.setEmulatedMedia", features=DARK)
    check(page.value(back) == "rgb(22, 24, 28)", f"dark: {page.value(back)}")
    end = time.monotonic() + LONG  # the page hears of the system's wish when it draws next
    while True:
        drawn = pixels(page, "residency")
        if drawn.get("#e6e6e6", 0) >= 300 and drawn.get("#1c1c1c", 0) < 50:
            break
        light = sorted(drawn.items(), key=lambda one: -one[1])[:8]
        check(time.monotonic() < end, f"the plots are not drawn anew in the dark: {light}")
        time.sleep(0.1)
    if options.keep:
        page.picture(os.path.join(options.keep, "dark.png"))
    page.value("document.getElementById('theme').click()")
    check(page.value(back) == "rgb(255, 255, 255)", "the button does not bring light")
    # Nothing failed, and nothing but the file was asked for.
    for event in page.events:
        method, told = event.get("method"), event.get("params", {})
        check(method not in ("Runtime.exceptionThrown", "Log.entryAdded"), f"the page said: {told}")
        if method == "Network.requestWillBeSent":
            check(told["request"]["url"] == "file://" + path, f"asked for {told['request']['url']}")
    refused = page.value("new Promise(done => { document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));"
                         " fetch('http://127.0.0.1:9/').then(() => done('came'), () => 0); })")
    check(refused == "connect-src", f"the page's policy lets it ask for more: {refused}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("olpagestat", "olrun", "program"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--keep")
    options = parser.parse_args()
    program = browser.find()
    if program is None:
        print("skipped: Chromium is not installed (tools/setup --test)")
        return 77
    with tempfile.TemporaryDirectory(prefix="olpagestat-", ignore_cleanup_errors=True) as scratch:
        path = report(options, scratch)
        page = browser.Browser(program, os.path.join(scratch, "profile"))
        try:
            look(options, page, path)
        finally:
            page.close()
    print("OK")
    return 0


sys.exit(main())
