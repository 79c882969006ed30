"""A real browser for tests: Debian's Chromium without a window, told what to do over a pipe.

Commands and events are those of the DevTools protocol. One page at a time.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Where a browser is; None: nowhere."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, program, profile, width=1200, height=900):
        to_read, self.to = os.pipe()
        self.come, to_write = os.pipe()

        def pipes():  # it reads from 3 and writes to 4
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        # As root it has no sandbox. Where /dev/shm is small its pictures lie elsewhere.
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=pipes, pass_fds=(3, 4))
        os.close(to_read)
        os.close(to_write)
        self.number, self.held, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.held:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.come], [], [], left)[0]:
                raise TimeoutError(f"the browser said nothing for {seconds} s")
            data = os.read(self.come, 1 << 20)
            if not data:
                raise EOFError(f"the browser ended: {self.process.wait(timeout=10)}")
            self.held += data
        one, self.held = self.held.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, seconds=60, **parameters):
        self.number += 1
        words = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            words["sessionId"] = self.session
        data = json.dumps(words).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            one = self.message(seconds)
            if one.get("id") == self.number:
                if "error" in one:
                    raise RuntimeError(f"{method}: {one['error']}")
                return one["result"]
            self.events.append(one)

    def open(self, path):
        """A file, until all of it is there."""
        self.events.clear()
        self.call("Page.navigate", url="file://" + path)
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self.message(60))

    def value(self, expression):
        """Of JavaScript in the page; of a promise what it comes to."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y, times=1):
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.mouse(kind, x, y, button="left", clickCount=count)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self):
        os.close(self.to)
        os.close(self.come)
        self.process.terminate()
        self.process.wait(timeout=60)
