"""What a daemon serves for Prometheus: asked for, and checked for its format."""
import re
import socket
import threading
import time
import urllib.error
import urllib.request

NAME = r"[a-z][a-z0-9_]*"


def figures(url, daemon, timeout=30):
    """Name and labels, without the daemon's name before them, to value."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        text = answer.read().decode()
    assert text.endswith("\n"), text
    told, kind, name = {}, None, None
    for line in text.splitlines():
        if found := re.fullmatch(rf"# HELP {daemon}_({NAME}) (\S.*\.)", line):
            name, kind = found.group(1), None
        elif found := re.fullmatch(rf"# TYPE {daemon}_({NAME}) (gauge|counter)", line):
            assert found.group(1) == name, f"not behind its HELP: {line}"
            kind = found.group(2)
            assert (kind == "counter") == name.endswith("_total"), line
        else:
            found = re.fullmatch(rf'{daemon}_({NAME})(\{{{NAME}="[a-z0-9_]+"\}})? (\d+)', line)
            assert found and found.group(1) == name and kind, f"not behind its TYPE: {line}"
            key = found.group(1) + (found.group(2) or "")
            assert key not in told, f"twice: {line}"
            told[key] = int(found.group(3))
    return told


def refused(url):
    """Whether there is no such page."""
    try:
        urllib.request.urlopen(url, timeout=30)
    except urllib.error.HTTPError as error:
        return error.code == 404
    return False


class Drip:
    """A client that sends its request a byte at a time, and never to its end, until it is cut off."""

    def __init__(self, url):
        host, port = re.match(r"http://(.*):(\d+)/", url).groups()
        self.socket = socket.create_connection((host, int(port)))
        self.thread = threading.Thread(target=self.drip, daemon=True)
        self.thread.start()

    def drip(self):
        try:
            while True:
                self.socket.send(b"a")
                time.sleep(0.1)
        except OSError:
            pass
