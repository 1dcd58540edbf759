"""The page of skill_run.report.html in a real browser, driven through its DevTools protocol."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_run.batch.inspect import InspectionReport, inspect_batch
from skill_run.report.finding import Finding
from skill_run.report.html import render_html

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
# The browser reads from descriptor 3 and writes to 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
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
        to_browser, self._out = self._pipe()
        self._in, from_browser = self._pipe()
        launcher = [sys.executable, "-I", "-c", LAUNCH, str(to_browser), str(from_browser)]
        command = [*launcher, program, *FLAGS, f"--user-data-dir={home}", "about:blank"]
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

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """Return a pipe whose ends are out of the way of descriptors 3 and 4."""
        ends = os.pipe()
        high = (fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10))
        for end in ends:
            os.close(end)
        return high

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
        for event in self.events:
            if event.get("method") == method:
                return event
        while True:
            self.events.append(self._read())
            if self.events[-1].get("method") == method:
                return self.events[-1]

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
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)
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


HOSTILE = (
    "</title></script><script>alert(1)</script><img src=https://example.org/x onerror=alert(2)>\"' onload='alert(3)"
)
# Of each text on the page: how far it stands out from what is behind it, as WCAG 2 reckons it.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return null;
  };
  const found = [];
  for (const element of document.querySelectorAll("main *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (!element.getClientRects().length) continue;
    const both = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    const [first, second] = both.sort((a, b) => b - a);
    found.push([(first + 0.05) / (second + 0.05), element.tagName + " " + element.className]);
  }
  return found;
})()
"""
Open = Callable[..., Page]
Pack = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        why_not = install_browser()
        if why_not:
            pytest.skip(f"the page is not looked at in a browser: {why_not}")
        program = find_browser()
    assert program is not None
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the page of a report."""
    pages: list[Page] = []

    def open_report(report: InspectionReport, width: int = 1440, scheme: str = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(render_html(report), "ascii")
        pages.append(Page(browser, file, width, scheme))
        return pages[-1]

    yield open_report
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def clean(pack: Pack) -> InspectionReport:
    return inspect_batch(pack([300, 700, 500, 1100], multiple=4, total=3072), cp=2)


@pytest.fixture(scope="module")
def broken(pack: Pack) -> InspectionReport:
    batch = pack([301, 700, 500, 1100], multiple=4, total=3072)
    batch["loss_mask"][0, 302:304] = 1
    batch["cu_seqlens_q_padded"][0, 3] = 950
    return inspect_batch(batch, cp=2)


@pytest.fixture(scope="module")
def dataset() -> InspectionReport:
    statistics = {
        "packs": 1200,
        "fill": 0.9731,
        "columns": {"input_ids": "list<int64>", "loss_mask": "list<int8>"},
        "length_histogram": {"1-127": 120, "128-255": 140, "256-511": 90},
    }
    finding = Finding("dataset-x", "warning", "A title", "A message.", ("input_ids",), "never")
    return InspectionReport(
        "packed/" + "a" * 120 + ".parquet", "packed_dataset", ">=0.6", "because", "meaning", 9_830_400, 1200, (),
        (finding,), statistics=statistics,
    )  # fmt: skip


@pytest.fixture(scope="module")
def hostile(clean: InspectionReport) -> InspectionReport:
    finding = Finding(HOSTILE, "error", HOSTILE, HOSTILE, (HOSTILE,), "never", evidence=({HOSTILE: HOSTILE},))
    text = HOSTILE + "x" * 190
    return replace(
        clean, source=text, because=text, meaning=text, findings=(finding,), notes=(text,),
        statistics={text: text, "table": {text: [text]}, "a_histogram": {text: 3}},
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("name", ["clean", "broken", "dataset", "hostile"])
def test_the_page_loads_without_complaint_and_fits_the_screen(
    name: str, width: int, scheme: str, open_page: Open, request: pytest.FixtureRequest
) -> None:
    report = request.getfixturevalue(name)
    page = open_page(report, width, scheme)
    page.evaluate("for (const element of document.querySelectorAll('details')) element.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints() == []
    assert page.requests() == [page.evaluate("location.href")]
    shown = page.evaluate("document.body.innerText")
    for finding in report.findings:
        assert finding.rule in shown
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 10
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_light_and_dark_differ(open_page: Open, clean: InspectionReport) -> None:
    colours = {
        scheme: open_page(clean, 375, scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert colours["light"] != colours["dark"]


@pytest.mark.parametrize("width", [375, 1440])
def test_pointing_at_a_sequence_shows_its_numbers(width: int, open_page: Open, broken: InspectionReport) -> None:
    page = open_page(broken, width)
    assert page.tip() is None
    page.point_at("[role=gridcell][aria-label*='sequence 1:']")
    assert page.tip() == ["row 0, sequence 1", "start 304", "end 1004", "logical 700", "physical 700", "trained 350"]
    page.point_at("h1")
    assert page.tip() is None
    assert page.complaints() == []


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("which", ["first", "last"])
def test_the_numbers_stay_on_the_screen(width: int, which: str, open_page: Open, clean: InspectionReport) -> None:
    page = open_page(clean, width)
    selector = "[role=gridcell]:first-of-type" if which == "first" else "[role=gridcell][aria-label*=filler]"
    page.point_at(selector)
    box = page.evaluate("document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= width
    assert 0 <= box["top"] < box["bottom"] <= 900


def test_the_map_is_one_tab_stop_with_arrow_keys_inside(open_page: Open, clean: InspectionReport) -> None:
    page = open_page(clean)
    page.press("Tab")
    assert page.tip() is not None
    assert page.tip()[0] == "row 0, sequence 0"
    page.press("ArrowRight")
    assert page.tip()[0] == "row 0, sequence 1"
    page.press("End")
    assert page.tip()[0] == "row 0, tail filler"
    page.press("ArrowLeft")
    assert page.tip()[0] == "row 0, sequence 3"
    page.press("Escape")
    assert page.tip() is None
    page.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.press("Tab")
    assert page.tip()[0] == "rank 0"
    page.press("ArrowDown")
    assert page.tip()[0] == "rank 1"
    assert page.complaints() == []


def test_what_has_the_keyboard_can_be_seen(open_page: Open, clean: InspectionReport) -> None:
    page = open_page(clean)
    width = "parseFloat(getComputedStyle(document.querySelector('[role=gridcell]')).strokeWidth)"
    before = page.evaluate(f"{width} + ' ' + getComputedStyle(document.querySelector('[role=gridcell]')).stroke")
    page.press("Tab")
    after = page.evaluate(f"{width} + ' ' + getComputedStyle(document.querySelector('[role=gridcell]')).stroke")
    assert before != after
    assert page.evaluate(width) >= 3


def test_screen_readers_are_told_what_the_picture_shows(open_page: Open, broken: InspectionReport) -> None:
    page = open_page(broken)
    page.evaluate("for (const element of document.querySelectorAll('details')) element.open = true")
    page.send("Accessibility.enable")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    assert ("grid", "Pack map") in named
    assert ("grid", "Tokens of each rank") in named
    assert ("region", "Sequences") in named
    cells = [name for role, name in named if role in ("gridcell", "cell")]
    assert "row 0, sequence 1: start 304, end 1004, logical 700, physical 700, trained 350" in cells
    assert "700" in cells
    headings = [name for role, name in named if role == "heading"]
    assert {"Findings", "Pack map", "Context parallel preview", "Logical lengths"} <= set(headings)
    parents = {child: node for node in nodes for child in node.get("childIds", [])}
    for node in nodes:
        if node["role"]["value"] == "gridcell":
            above = parents[node["nodeId"]]
            while above.get("ignored"):
                above = parents[above["nodeId"]]
            assert above["role"]["value"] == "row"


def test_hostile_text_runs_nothing(open_page: Open, hostile: InspectionReport) -> None:
    page = open_page(hostile)
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.images.length") == 0
    assert HOSTILE in page.evaluate("document.body.innerText")
    assert not [event for event in page.browser.events if event.get("method") == "Page.javascriptDialogOpening"]


def test_the_policy_stops_a_script_that_is_not_the_pages_own(open_page: Open, clean: InspectionReport) -> None:
    page = open_page(clean)
    page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
        " document.body.append(script)"
    )
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in page.complaints())


def test_a_wide_table_scrolls_inside_its_frame(open_page: Open, hostile: InspectionReport) -> None:
    page = open_page(hostile, 375)
    frames = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((e) => [e.scrollWidth > e.clientWidth, e.tabIndex])"
    )
    assert [True, 0] in frames


def test_a_batch_of_many_rows_stays_light(open_page: Open, pack: Pack) -> None:
    rows = [pack([40 + 8 * at for at in range(20)], multiple=8, total=4096) for _ in range(100)]
    joined = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    page = open_page(inspect_batch(joined), 375)
    assert page.evaluate("document.querySelectorAll('[role=row]').length") == 100
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.point_at("[role=gridcell][aria-label^='row 99, sequence 19:']")
    assert page.tip()[0] == "row 99, sequence 19"
