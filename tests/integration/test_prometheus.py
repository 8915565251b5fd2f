"""A real Prometheus scrapes a real Jupyter server, and every panel of the dashboard asks it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.model import NewEnvironment, Request
from tests.debian import unpacked
from tests.integration.daemons import serving
from tests.integration.test_server_process import TOKEN, Jupyter, until

ROOT = Path(__file__).parents[2]
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: jupyter
    static_configs: [{{targets: ["{target}"]}}]
    authorization: {{type: token, credentials: {token}}}
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    return unpacked("prometheus", "main") / "usr/bin"


@pytest.fixture
def jupyter(broker_home: Path, tmp_path: Path) -> Iterator[Jupyter]:
    made = Jupyter(tmp_path)
    try:
        made.wait()
        yield made
    finally:
        made.stop(signal.SIGTERM)


class Prometheus:
    """A running Prometheus that scrapes one server each second."""

    def __init__(self, programs: Path, directory: Path, url: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        target = urllib.parse.urlsplit(url).netloc
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(target=target, token=TOKEN))
        with (directory / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    programs / "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, query: str) -> list[Any]:
        """Return what a query gives, which Prometheus must understand; nothing before it is up."""
        text = urllib.parse.urlencode({"query": query})
        try:
            where = f"http://127.0.0.1:{self.port}/api/v1/query?{text}"
            with urllib.request.urlopen(where, timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        except OSError:
            return []
        assert found["status"] == "success"
        return list(found["data"]["result"])

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def prometheus(programs: Path, jupyter: Jupyter, tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(programs, tmp_path, jupyter.url)
    yield made
    made.end()


def scrape(jupyter: Jupyter) -> str:
    request = urllib.request.Request(
        f"{jupyter.url}metrics", headers={"Authorization": f"token {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def ours(text: str) -> str:
    """Return our part of what a server tells; the rest is Jupyter's and Python's."""
    return "".join(line + "\n" for line in text.splitlines() if re.match(r"(# \w+ )?genv_", line))


def lint(programs: Path, text: str) -> None:
    """Have Prometheus' own tool judge names, types and texts."""
    linted = subprocess.run(
        [programs / "promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (linted.returncode, linted.stderr) == (0, ""), linted.stderr


def queries() -> list[str]:
    """Return what the dashboard's panels ask, for all servers."""
    dashboard = json.loads((ROOT / "examples/grafana/genv-jupyter.json").read_text())
    return [
        target["expr"].replace("$instance", ".*")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def test_prometheus_scrapes_what_the_dashboard_shows(
    jupyter: Jupyter, prometheus: Prometheus, programs: Path
) -> None:
    kernel = jupyter.start_kernel()
    body = {"fraction": 0.5}
    until(lambda: "genv_broker_up 1.0" in scrape(jupyter), "a broker that is heard")
    jupyter.call("PUT", f"genv-jupyter/v1/environments/{kernel}", body)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        jupyter.call("PUT", f"genv-jupyter/v1/environments/{kernel}", {"gpus": 7})
    code = json.loads(refusal.value.read())["code"]
    refusal.value.close()
    until(
        lambda: prometheus.ask("sum(genv_gpu_memory_granted_bytes) == 12 * 2^30"),
        "the grant in Prometheus",
    )
    waiting = jupyter.start_kernel()
    every = {"gpus": len(jupyter.call("GET", "genv-jupyter/v1/devices")), "wait": "1h"}
    jupyter.call("PUT", f"genv-jupyter/v1/environments/{waiting}", every)
    until(lambda: prometheus.ask("genv_queue_length == 1"), "who waits")
    until(lambda: prometheus.ask(f'genv_refusals_total{{code="{code}"}} == 1'), "the refusal")
    until(lambda: prometheus.ask("genv_attach_duration_seconds_count == 3"), "all three attaches")
    asked = queries()
    assert len(asked) >= 15
    for query in asked:
        if re.search(r"\[\w+\]", query):
            prometheus.ask(query)  # needs minutes to say something; it is understood
        else:
            assert prometheus.ask(query), query
    lint(programs, ours(scrape(jupyter)))


def test_the_alerts_fire_when_they_should_and_ask_for_metrics_that_exist(
    programs: Path,
) -> None:
    rules = ROOT / "examples/prometheus/genv-jupyter.rules.yml"
    checked = subprocess.run(
        [programs / "promtool", "check", "rules", "--lint=all", "--lint-fatal", rules],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0 and "6 rules found" in checked.stdout, checked
    played = ROOT / "tests/integration/alerts.yml"
    tested = subprocess.run(
        [programs / "promtool", "test", "rules", played], capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    documented = (ROOT / "docs/monitoring.md").read_text()
    asked = set(re.findall(r"\bgenv_\w+", rules.read_text()))
    assert asked and not [name for name in asked if f"`{name}`" not in documented]


def test_a_daemon_of_a_host_tells_the_same_at_its_socket(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "c.Rules.cap = 'act'"
    with serving(monkeypatch, rules) as daemon:
        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=os.getpid(), name="secret work"))
        client.attach(made.id, Request(fraction=0.5))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(daemon.socket))
        connection.request("GET", "/v1/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.status == 200
    assert str(answer.headers["Content-Type"]).startswith("text/plain; version=")
    assert "genv_attach_duration_seconds_count 1.0" in text
    assert 'genv_environments{state="granted"} 1.0' in text
    assert "genv_queue_length 0.0" in text
    assert 'genv_rule_actions_total{action="kill",rule="cap"} 0.0' in text
    assert "secret" not in text and made.user not in text and made.id not in text
    lint(programs, text)


def test_a_server_without_the_extension_tells_nothing(broker_home: Path, tmp_path: Path) -> None:
    made = Jupyter(tmp_path, "--GenvJupyterApp.enabled=False")
    try:
        made.wait()
        assert ours(scrape(made)) == ""
    finally:
        made.stop(signal.SIGTERM)


def test_a_hung_broker_holds_up_no_scrape(jupyter: Jupyter) -> None:
    until(lambda: "genv_broker_up 1.0" in scrape(jupyter), "a broker that is heard")
    pid = jupyter.call("GET", "genv-jupyter/v1/health")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "genv_gpu_memory_bytes" in scrape(jupyter)
    finally:
        os.kill(pid, signal.SIGCONT)
