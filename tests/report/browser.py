"""A real browser for tests: chromium through chromedriver, spoken to with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--force-prefers-reduced-motion",
]


def programs() -> tuple[str, str] | None:
    """Browser and driver, if both are installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, path: Path) -> None:
        self.visit(path.resolve().as_uri())

    def visit(self, address: str) -> None:
        self.address = address
        self.log("browser")
        self.log("performance")
        _call("POST", f"{self._base}/url", {"url": self.address})

    def run(self, script: str) -> Any:
        return _call("POST", f"{self._base}/execute/sync", {"script": script, "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _call("POST", f"{self._base}/se/log", {"type": kind})
        return found

    def devtools(self, command: str, **parameters: Any) -> Any:
        return _call("POST", f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def choose(self, selector: str, file: Path) -> None:
        """Give a file to an input, as the person does who chooses one."""
        found = self.devtools("Runtime.evaluate", expression=f"document.querySelector({selector!r})")
        self.devtools("DOM.setFileInputFiles", files=[str(file)], objectId=found["result"]["objectId"])

    def until(self, script: str, seconds: float = 120) -> Any:
        """The script's answer, once it is true."""
        end = time.monotonic() + seconds
        while not (answer := self.run(script)):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {script}")
            time.sleep(0.05)
        return answer

    def look(self, width: int, height: int, scheme: str) -> None:
        """A window of that size, in light or dark."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.devtools("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def requests(self) -> list[str]:
        """Every address that the open page asked for; the browser's own start page may still ask for others."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [asked["request"]["url"] for asked in sent if asked["documentURL"] == self.address]

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        found = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path


@contextmanager
def browser() -> Iterator[Browser]:
    found = programs()
    if found is None:
        raise RuntimeError("no chromium with chromedriver")
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen([found[1], "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            address = f"http://127.0.0.1:{_port(driver)}"
            options = {"binary": found[0], "args": [*FLAGS, f"--user-data-dir={profile}"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            session = _call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            try:
                window = Browser(address, session)
                # A person looks at the page: without focus, which a headless window may lack, inputs get no focus event.
                window.devtools("Emulation.setFocusEmulationEnabled", enabled=True)
                yield window
            finally:
                _call("DELETE", f"{address}/session/{session}")
        finally:
            driver.terminate()
            driver.wait(60)


def _port(driver: subprocess.Popen[str]) -> int:
    end = time.monotonic() + 600
    while driver.stdout is not None and time.monotonic() < end:
        line = driver.stdout.readline()
        if "started successfully on port" in line:
            return int(line.rsplit("port", 1)[1].strip(" .\n"))
    raise RuntimeError("chromedriver did not start")


def _call(method: str, address: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()) from error
