"""Headless Chromium over its debugging pipe: opens a page, evaluates in it, says what it logged and asked for.

The pipe (`--remote-debugging-pipe`: NUL-separated JSON on descriptors 3 and 4) needs no driver and no library.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from time import monotonic, sleep

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_browser():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `log`: console messages and exceptions; `requests`: every URL asked for."""

    def __init__(self, profile, timeout_seconds=120):
        self.timeout_seconds, self.log, self.requests = timeout_seconds, [], []
        self._number, self._buffer = 0, b""
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        # the shell moves the two ends to the descriptors Chromium expects
        command = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "browser", find_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._session = None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Runtime", "Network", "Page", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        os.close(self._read)
        self._process.kill()
        self._process.wait()

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (found := self._receive()).get("id") != self._number:
            self._note(found)
        assert "error" not in found, found
        return found["result"]

    def _receive(self):
        deadline = monotonic() + self.timeout_seconds
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], max(0, deadline - monotonic()))[0], "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.log.append(parameters["exceptionDetails"].get("exception", {}).get("description", str(parameters)))
        elif method == "Log.entryAdded":
            self.log.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.log.append(str([a.get("value", a.get("description")) for a in parameters["args"]]))

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression):
        """The first true value of an expression."""
        deadline = monotonic() + self.timeout_seconds
        while not (value := self.evaluate(expression)):
            assert monotonic() < deadline, f"never true: {expression}\n{self.log}"
            sleep(0.05)
        return value

    def open(self, path):
        self.call("Page.navigate", url=path.as_uri())

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)
