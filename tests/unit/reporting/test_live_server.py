"""The live page's server: this machine only, reading only, one line of error."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

import pytest

from sdpo.cli.watch import main
from sdpo.reporting.live.run import LiveRun
from sdpo.reporting.live.server import WatchServer


@pytest.fixture
def server(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/accuracy": 0.5}\n')
    (tmp_path / "samples.jsonl").write_text('{"step": 1, "phase": "train", "uid": "a", "index": 0, "reward": 1.0}\n')
    with WatchServer(LiveRun(tmp_path), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.run.refresh()
        yield server
        server.shutdown()


def _get(server: WatchServer, path: str, host: str | None = None) -> tuple[int, str, dict]:
    request = urllib.request.Request(server.url + path, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_the_page_and_its_data_are_served(server):
    assert server.server_address[0] == "127.0.0.1"
    for path, part in (("", "watch.js"), ("watch.css", "--card"), ("watch.js", "attachCharts")):
        status, text, _ = _get(server, path)
        assert status == 200 and part in text
    assert json.loads(_get(server, "state")[1])["samples"] == 1
    assert "Accuracy by step" in json.loads(_get(server, "charts")[1])["Accuracy and reward"]
    assert json.loads(_get(server, "metrics?text=ACC")[1])["count"] == 1
    assert [item["uid"] for item in json.loads(_get(server, "samples?outcome=solved")[1])["items"]] == ["a"]
    assert json.loads(_get(server, "sample?number=0&generation=0")[1])["uid"] == "a"


def test_nothing_is_fetched_from_elsewhere_and_only_our_script_runs(server):
    _, page, headers = _get(server, "")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    for text in (page, _get(server, "watch.css")[1], _get(server, "watch.js")[1]):
        assert "https://" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_another_sites_name_for_this_machine_reads_nothing(server):
    assert _get(server, "state", host=f"evil.example:{server.server_port}")[0] == 403
    assert _get(server, "state", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../../etc/passwd", 404),
        ("assets/watch.js", 404),
        ("samples.jsonl", 404),
        ("sample?number=7&generation=0", 404),
        ("sample?number=-1", 404),
        ("sample?number=0&generation=9", 404),
        ("samples?step=x", 400),
        ("samples?before=x", 400),
    ],
)
def test_what_is_not_there_or_no_number_is_an_answer_not_a_crash(server, path, status):
    assert _get(server, path)[0] == status


def test_a_wrong_folder_and_a_taken_port_are_one_line(server, tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 3
    assert main([str(tmp_path), "--port", str(server.server_port)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2 and "Traceback" not in error
