from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from sdpo.config.schema import Config
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample


@pytest.fixture
def config(tmp_path) -> Config:
    config = Config()
    config.trainer.default_local_dir = str(tmp_path / "run")
    config.trainer.logger = ["console"]
    return config


@pytest.fixture
def make_group():
    def make(uid: str, rewards: list[float | None], text: str = "return x", feedback: str = "no") -> Group:
        prompt = Prompt(uid, ({"role": "user", "content": f"Problem {uid}"},), "programs", ground_truth="secret")
        samples = []
        for index, reward in enumerate(rewards):
            status = GradeStatus.INFRA_ERROR if reward is None else GradeStatus.OK if reward == 1 else GradeStatus.WRONG
            grade = Grade(status, reward, reward or 0.0, "" if reward == 1 else feedback)
            samples.append(Sample(uid, index, [1, 2], [3] * (index + 1), text, "stop", 7, None, grade))
        return Group(prompt, samples)

    return make


@pytest.fixture
def read_jsonl():
    """Reads a file as strictly as a browser does: bare NaN or Infinity is an error."""

    def read(path) -> list[dict]:
        def refuse(constant: str):
            raise ValueError(f"{constant} is not JSON")

        return [
            json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").split("\n") if line
        ]

    return read


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
    "--window-size=1440,1000",
)  # fmt: skip


class Tab:
    """One page of a headless browser, driven over its debugging protocol."""

    def __init__(self, browser: str, profile: Path) -> None:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._numbers = itertools.count(1)
        port = self._wait(lambda: (profile / "DevToolsActivePort").read_text().splitlines(), FileNotFoundError)
        self._socket = connect(f"ws://127.0.0.1:{port[0]}{port[1]}", max_size=None)
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._send("Runtime.enable")

    def _send(self, method: str, **params) -> dict:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while (answer := json.loads(self._socket.recv(timeout=PATIENCE_S))).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str) -> None:
        self._send("Page.navigate", url=url)

    def js(self, expression: str):
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str):
        """Waits until the expression is true in the page, and returns it."""
        return self._wait(lambda: self.js(expression) or None, AssertionError)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._send("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _wait(attempt, failure: type[Exception]):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if (found := attempt()) is not None and found != []:
                    return found
            except failure:
                pass  # not yet
            time.sleep(0.1)
        raise TimeoutError


@pytest.fixture(scope="session")
def tab(tmp_path_factory):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no headless browser on this machine: none of {', '.join(BROWSERS)}")
    tab = Tab(browser, tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()
