"""`%gpu panel` in real kernels: the classic comm flow, as every front end speaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook

from genv_jupyter.kernel.panel import THREAD
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import STARTUP, TIMEOUT, Kernel, ServedKernel, Server
from tests.integration.test_kernel_cache import CUDA

__all__ = ["fake_driver"]

VIEW = "application/vnd.jupyter.widget-view+json"
THREADS = f"[t.name for t in __import__('threading').enumerate()].count({THREAD!r})"
WIDGETS = "len(__import__('ipywidgets').widgets.widget._instances)"


class Front:
    """A front end without a screen: knows the state of every widget, and clicks."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.models: dict[str, dict[str, Any]] = {}
        self.shown: dict[str, Any] = {}

    def run(self, code: str) -> None:
        """Run a cell to its end."""
        sent = self.kernel.begin(code)
        self.idle(sent)
        self.kernel.client.get_shell_msg(timeout=TIMEOUT)

    def idle(self, sent: str) -> None:
        self.until(
            lambda message: (
                message["parent_header"].get("msg_id") == sent
                and message["content"].get("execution_state") == "idle"
            )
        )

    def until(self, true: Callable[[dict[str, Any]], bool]) -> None:
        while not true(self.read()):
            pass

    def read(self) -> dict[str, Any]:
        """Take in one message."""
        message: dict[str, Any] = self.kernel.client.get_iopub_msg(timeout=TIMEOUT)
        content, kind = message["content"], message["msg_type"]
        if kind == "comm_open":
            self.models[content["comm_id"]] = content["data"]["state"]
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.models[content["comm_id"]].update(content["data"]["state"])
        elif kind == "comm_close":
            self.models.pop(content["comm_id"], None)
        elif kind in ("execute_result", "display_data"):
            self.shown = content["data"]
        elif kind == "error":
            raise AssertionError(content)
        return message

    def says(self, text: str, *, not_yet: str = "\0") -> None:
        """Wait until one of the panel's texts has this in it."""
        self.until(lambda _: text in self.text)

    @property
    def text(self) -> str:
        return " ".join(
            state["value"]
            for state in self.models.values()
            if state.get("_model_name") == "HTMLModel"
        )

    def model(self, **facts: str) -> str:
        (found,) = (
            name
            for name, state in self.models.items()
            if all(state.get(key) == value for key, value in facts.items())
        )
        return found

    def send(self, comm: str, data: dict[str, Any]) -> None:
        client = self.kernel.client
        message = client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        client.shell_channel.send(message)
        self.idle(message["header"]["msg_id"])

    def click(self, label: str) -> None:
        button = self.model(description=label, _model_name="ButtonModel")
        self.send(button, {"method": "custom", "content": {"event": "click"}})

    def write(self, amount: str) -> None:
        field = self.model(_model_name="ComboboxModel")
        self.send(field, {"method": "update", "state": {"value": amount}, "buffer_paths": []})

    def views(self, number: int) -> None:
        root = str(self.shown[VIEW]["model_id"])
        self.send(root, {"method": "update", "state": {"_view_count": number}, "buffer_paths": []})


@pytest.fixture
def kernel(server: Server) -> ServedKernel:
    return server.kernel("llm")


@pytest.fixture
def front(kernel: ServedKernel) -> Front:
    front = Front(kernel)
    front.run("%gpu panel")
    return front


def test_attach_refuse_and_release_by_clicks(
    server: Server, kernel: ServedKernel, front: Front
) -> None:
    assert "has no grant" in front.text and "GPU 0: all free (23.5 GiB)" in front.text
    assert front.models[front.model(description="Release")]["disabled"] is True
    front.click("Attach")
    assert "Attached." in front.text and "nothing of 11.8 GiB, peak nothing" in front.text
    assert [grant.compute for grant in kernel.environment().grants] == [5000]
    assert front.models[front.model(description="Release")]["disabled"] is False
    other = server.kernel("debug")
    assert other.run("%gpu attach 1").ok
    before = kernel.environment().grants
    front.write("2")
    front.click("Attach")
    assert "debug.ipynb of" in front.text and "holds all of it since" in front.text
    assert kernel.environment().grants == before
    for amount, said in (("", "Say an amount first."), ("lots", "is not"), ("1.5", "cannot")):
        front.write(amount)
        front.click("Attach")
        assert said in front.text, amount
    front.click("Release")
    assert "Released." in front.text and "has no grant" in front.text
    assert kernel.environment().grants == ()


def test_bars_follow_while_a_cell_runs(front: Front, tmp_path: Path) -> None:
    front.click("Attach")
    front.run(f"import pathlib, time; stop = pathlib.Path({str(tmp_path)!r}) / 'stop'")
    sent = front.kernel.begin(
        f"{CUDA}\nbuffer = Buffer(3)\nwhile not stop.exists(): time.sleep(0.02)"
    )
    front.says("3.3 GiB of 11.8 GiB")
    (tmp_path / "stop").touch()
    front.idle(sent)
    front.kernel.client.get_shell_msg(timeout=TIMEOUT)
    front.run("Buffer(2)\ndel buffer")
    front.click("Empty cache")
    assert "2 GiB came back." in front.text or "Nothing came back." in front.text
    front.says("300 MiB of 11.8 GiB")


def test_poll_stops_without_a_view_and_goes_on_with_one(kernel: ServedKernel, front: Front) -> None:
    front.run("panel = __import__('genv_jupyter.kernel.panel').kernel.panel._current")
    front.views(1)
    front.views(0)
    front.run("looked = []; look = panel._look")
    front.run("panel._look = lambda *a: looked.append(1) or look(*a)")
    front.run("import time; time.sleep(2.5); seen = len(looked)")
    front.views(1)
    front.run("while len(looked) <= seen: time.sleep(0.05)")
    assert kernel.value("seen") <= 1, "one that was under way"


def test_close_and_a_second_panel_leave_nothing_behind(kernel: ServedKernel, front: Front) -> None:
    widgets = kernel.value(WIDGETS)
    assert kernel.value(THREADS) == 1
    front.run("%gpu panel")
    assert (kernel.value(THREADS), kernel.value(WIDGETS)) == (1, widgets)
    front.click("Close")
    front.run("[t.join() for t in __import__('threading').enumerate() if 'panel' in t.name];")
    assert (kernel.value(THREADS), kernel.value(WIDGETS)) == (0, 0)
    assert front.models == {}, "the front end was told"
    front.run("panel = __import__('genv_jupyter.kernel.panel').kernel.panel._current; panel")
    assert VIEW not in front.shown and "text/html" in front.shown


def test_panel_ends_when_the_front_end_closes_it(kernel: ServedKernel, front: Front) -> None:
    client = kernel.client
    root = str(front.shown[VIEW]["model_id"])
    message = client.session.msg("comm_close", {"comm_id": root, "data": {}})
    client.shell_channel.send(message)
    front.idle(message["header"]["msg_id"])
    front.run("[t.join() for t in __import__('threading').enumerate() if 'panel' in t.name];")
    assert kernel.value(WIDGETS) == 0


def test_kernel_ends_with_a_panel_open(
    kernel: ServedKernel, front: Front, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    kernel.client.shutdown()
    kernel.client.get_control_msg(timeout=TIMEOUT)
    assert kernel.manager.provisioner is not None
    assert kernel.manager.provisioner.process.wait(TIMEOUT) == 0
    assert capfd.readouterr().err == ""


def test_without_ipywidgets_it_is_one_line(server: Server, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "ipywidgets.py").write_text("raise ModuleNotFoundError('ipywidgets')\n")
    ran = server.kernel("poor", PYTHONPATH=str(hidden)).run("%gpu panel")
    assert ran.ok and "pip install ipywidgets" in " ".join(ran.text.split())


@pytest.mark.parametrize("state", [True, False])
def test_export_is_a_picture(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bool
) -> None:
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / STARTUP.name).write_text(STARTUP.read_text())
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = new_notebook(cells=[new_code_cell("%gpu attach 0.5"), new_code_cell("%gpu panel")])
    NotebookClient(book, kernel_name="python3", store_widget_state=state).execute()
    nbformat.validate(book)
    (shown,) = book.cells[1].outputs
    assert VIEW in shown.data
    for kind in ("text/html", "text/plain"):
        assert "nothing of 11.8 GiB, peak nothing" in shown.data[kind]
    page, _ = HTMLExporter().from_notebook_node(book)
    assert "nothing of 11.8 GiB, peak nothing" in page
    assert ("application/vnd.jupyter.widget-state+json" in page) == state
