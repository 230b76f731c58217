"""Which tests run which lines of some files: a plugin of pytest for `helpers.mutants`."""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

FILES, OUT = "MUTANTS_FILES", "MUTANTS_OUT"  # variables: the files, and the folder that the results go to


class Seen:
    """Follows the lines of some files, by test."""

    def __init__(self, files: set[str], out: Path) -> None:
        self.files, self.out = files, out
        self.lines: set[tuple[str, int]] = set()
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()

    def called(self, frame: FrameType, event: str, value: Any) -> Any:
        return self.ran if frame.f_code.co_filename in self.files else None

    def ran(self, frame: FrameType, event: str, value: Any) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.ran

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.lines, begin = set(), time.perf_counter()
        sys.settrace(self.called)
        threading.settrace(self.called)
        result = yield
        self.tests[item.nodeid] = {"seconds": time.perf_counter() - begin, "lines": sorted(self.lines)}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        found = {"tests": self.tests, "failed": sorted(self.failed)}
        (self.out / f"{os.getpid()}.json").write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    if OUT in os.environ:
        config.pluginmanager.register(Seen({*os.environ[FILES].split(os.pathsep)}, Path(os.environ[OUT])))
