"""The page of skill_run.report.html in a real browser, driven through its DevTools protocol."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
ANSWER_SECONDS = 60.0


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def install_browser() -> str:
    """Return why no browser could be installed, empty if one was."""
    if os.environ.get("CI") != "true" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"none of {', '.join(NAMES)} is on PATH (CI=true as root installs one)"
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            return f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}"
    return "" if find_browser() else "apt-get installed chromium, but it is not on PATH"


class Browser:
    """A headless browser over a pair of pipes: JSON messages, each ended by a zero byte."""

    def __init__(self, program: str, home: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4, which Python cannot place by itself.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["/bin/sh", "-c", script, "sh", program, *FLAGS, f"--user-data-dir={home}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(home), "PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result; events that come meanwhile are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """Return the first event of a kind, past or coming."""
        at = 0
        while True:
            for at in range(at, len(self.events)):
                if self.events[at].get("method") == method:
                    return self.events[at]
            at = len(self.events)
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready = select.select([self._in], [], [], max(0.0, left))[0]
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, f"the browser has ended with {self._process.wait()}"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        """End the browser and wait for it."""
        try:
            self.send("Browser.close")
        finally:
            os.close(self._out)
            os.close(self._in)
            try:
                self._process.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Page:
    """One open page of a given width, in light or dark."""

    def __init__(self, browser: Browser, file: Path, width: int, scheme: str) -> None:
        self.browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        browser.wait_for("Page.loadEventFired")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def point_at(self, selector: str) -> None:
        where = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])

    def tip(self) -> list[str] | None:
        """Return the lines of the tooltip, None while it is hidden."""
        lines = "[...document.getElementById('tip').children].map(e => e.textContent)"
        found = self.evaluate(f"document.getElementById('tip').hidden ? null : {lines}")
        return None if found is None else list(found)

    def complaints(self) -> list[str]:
        """Return errors and warnings of the page: scripts, console, policy."""
        self.evaluate("0")
        found = []
        for event in self.browser.events:
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                found.append(json.dumps(event["params"]))
        return found

    def requests(self) -> list[str]:
        """Return every address that the page asked for."""
        sent = [event for event in self.browser.events if event.get("method") == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self.target)
