"""Chromium, for tests of pages; they are skipped where there is none."""

import shutil
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium here (Debian: apt-get install chromium chromium-driver)", allow_module_level=True)

from selenium.webdriver.common.keys import Keys  # noqa: E402, F401
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

QUIET = "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"


class Browser:
    """Chromium with a few words for what a person does."""

    def __init__(self, profile: Path, width: int = 1280) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for word in (*QUIET.split(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.resize(width)

    def resize(self, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def offline(self) -> None:
        nothing = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", nothing)

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.wait("return document.body.hasAttribute('data-ready')")

    def run(self, script: str, *words: Any) -> Any:
        return self.driver.execute_script(script, *words)

    def wait(self, script: str, *words: Any) -> Any:
        return WebDriverWait(self.driver, 60, 0.1).until(lambda _: self.run(script, *words), script)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def column(self, number: int) -> list[str]:
        """A column of the results, as it is shown."""
        return [cell.text for cell in self.all(f"#results tbody tr > :nth-child({number})")]

    def chart(self, id: str) -> Any:
        """A chart once it is drawn, in the middle of the window."""
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", id)
        self.wait("return document.getElementById(arguments[0]).querySelector('.main-svg') !== null", id)
        return self.one(f"#{id}")

    def visible(self, id: str) -> list[bool]:
        """Which lines of a chart are shown; bands have no name."""
        script = "return document.getElementById(arguments[0]).data.filter(t => t.name).map(t => t.visible)"
        shown: list[bool] = self.run(script, id)
        return shown

    def choose(self, id: str, value: str) -> None:
        script = "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        self.run(script + "s.dispatchEvent(new Event('change'))", id, value)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]]
