"""`%gpu` in real kernels over NVIDIA's own library: every verb, too late, and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from genv_jupyter.model import Request
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.kernels import Kernel, Ran, Server, next_want

__all__ = ["fake_driver"]

SEEN = """
from cuda.bindings import driver as cuda
def seen():
    if int(cuda.cuInit(0)[0]):
        return []
    count = cuda.cuDeviceGetCount()[1]
    return [cuda.cuDeviceGetUuid(cuda.cuDeviceGet(i)[1])[1].bytes.hex() for i in range(count)]
"""
BAD = (
    "attach 0",
    "attach -1",
    "attach nan",
    "attach 1.5",
    "attach 0.555",
    "attach 4X",
    "attach --memory 4X",
    f"attach --memory {10**30}",
    "attach --memory 999G",
    "attach --memory",
    "attach --device GPU-not-there",
    "attach --device GPU-",
    "attach 1 2",
    "attach 0.5 --processes 49",
    "attach 0.5 --processes many",
    "attach --wurst",
    "attach 'half",
    "release --device GPU-not-there",
    "frobnicate",
    "devices all of them",
)


def bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").replace("-", "")


def one_line(ran: Ran) -> str:
    """Return the message of a refused line; fail if there is a traceback."""
    assert ran.status == "error"
    assert " ".join(ran.traceback) == ran.error
    assert "\n" not in ran.error and "Traceback" not in ran.error + ran.stderr
    return ran.error


def test_attach_is_seen_by_cuda_at_once(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run(SEEN)
    attached = kernel.run("%gpu attach 0.5")
    assert attached.ok
    assert attached.text.startswith("Attached.") and "in force" in attached.text
    assert "<div" in attached.html and "in force" in attached.html
    (grant,) = kernel.environment().grants
    assert (grant.applied, grant.compute) == ("live", 5000)
    assert kernel.value("seen()") == [bare(grant.device)]
    for _ in range(2):  # Run All, CUDA initialised by now
        again = kernel.run("%gpu attach 0.5")
        assert again.ok, again
        assert again.text.startswith("Attached already.")
    assert kernel.environment().cuda == "initialized"
    assert kernel.environment().grants == (grant,)


def test_views_of_every_verb(server: Server) -> None:
    kernel = server.kernel("viz")
    nothing = kernel.run("%gpu")
    assert "This notebook (viz.ipynb) has no GPU: they are hidden" in nothing.text
    assert "%gpu attach 0.5" in nothing.text and "not started by" not in nothing.text
    assert kernel.run("%gpu attach 0.5 --name 'my plots'").ok
    here = kernel.run("%gpu")
    assert "This notebook (my plots) has a GPU." in here.text
    devices = kernel.run("%gpu devices")
    assert "my plots (here)" in devices.text and "50 % of compute" in devices.text
    assert 'role="img"' in devices.html
    envs = kernel.run("%gpu envs")
    assert "my plots (here)" in envs.text
    doctor = kernel.run("%gpu doctor")
    for part in ("Driver", "Pool", "Broker", "This kernel", "Limits", "stronger"):
        assert part in doctor.text
    assert "not initialized in this process" in doctor.text
    assert "%gpu attach --memory 4G" in kernel.run("%gpu help").text
    assert kernel.run("%gpu attach --help").text == kernel.run("%gpu help").text
    for ran in (nothing, here, devices, envs, doctor):
        assert max(map(len, ran.text.splitlines())) <= 80
        assert "SIMULATED" not in ran.text + ran.html, "these are not simulated"
    kernel.run("status = %gpu")
    assert kernel.value("status.environment.grants[0].compute") == 5000
    assert "my plots" not in kernel.run("%gpu release").text.split("\n")[0]


def test_tab_knows_the_verbs_before_their_first_use_and_adds_no_names_of_python(
    server: Server,
) -> None:
    kernel = server.kernel("llm")

    def tab(line: str) -> list[str]:
        reply = kernel.client.complete(line, reply=True, timeout=30)
        return list(reply["content"]["matches"])

    for _ in range(2):  # by the stub, then by the magic that it has loaded
        assert tab("%gpu at") == tab("x = %gpu at") == ["attach"]
        assert {"attach", "release", "doctor"} <= set(tab("%gpu ")) and "and" not in tab("%gpu ")
        assert "--memory" in tab("%gpu attach --") and "print" not in tab("%gpu attach --")
        assert "--memory" not in tab("%gpu attach --memory 4G --")
        assert tab("%gpu attach --device ") == tab("%gpu detach -d ") == ["0", "1"]
        assert tab("%%gpu ") == ["turn"] and tab("%%gpu turn -") == ["--timeout"]
        assert "print" in tab("pri"), "all else is completed as ever"
        assert kernel.run("%gpu").ok


def test_a_question_mark_behind_a_verb_is_answered(server: Server) -> None:
    kernel = server.kernel("llm")
    for _ in range(2):  # by the stub, then by the magic that it has loaded
        asked = kernel.run("1\n%gpu attach?")
        assert asked.ok and "%gpu attach --memory 4G" in asked.text
        assert kernel.run("%gpu attach??").ok
    assert kernel.run("%gpu?").ok and kernel.run("print?").ok, "IPython's own goes on"


def test_bad_input_is_one_line_and_changes_nothing(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 0.5").ok
    before = kernel.environment()
    for line in BAD:
        message = one_line(kernel.run(f"%gpu {line}"))
        assert len(message) < 400, line
    assert kernel.environment() == before
    assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']").startswith("GPU-")


def test_release_hides_first_and_frees_at_once(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run(SEEN)
    assert kernel.run("%gpu attach 1").ok
    released = kernel.run("%gpu release")
    assert released.text.startswith("Released.")
    assert kernel.environment().state == "released"
    assert kernel.value("seen()") == []
    assert kernel.run("%gpu release").text.startswith("There is nothing to release.")


SPY = """
import os
client = get_ipython().find_line_magic("gpu").__self__.session.client
detach, patch, fail, at_report = client.detach, client.patch, False, None
def failing(*args, **kwargs):
    if fail:
        from genv_jupyter.errors import BrokerDown
        raise BrokerDown("It is down.")
    return detach(*args, **kwargs)
def reporting(environment, body):
    global at_report
    held = client.environment(environment).grants
    at_report = [os.environ["CUDA_VISIBLE_DEVICES"], [grant.state for grant in held]]
    return patch(environment, body)
client.detach, client.patch = failing, reporting
"""


def test_a_device_is_free_only_after_it_is_hidden(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 1").ok
    kernel.run(SPY)
    kernel.run("fail = True")
    assert one_line(kernel.run("%gpu release")) == "It is down."
    assert kernel.value("os.environ['CUDA_VISIBLE_DEVICES']").startswith("GPU-"), "as before"
    kernel.run("fail = False")
    assert kernel.run("%gpu release").text.startswith("Released.")
    assert kernel.value("at_report") == ["", ["draining"]]
    assert kernel.environment().grants == ()


def test_what_may_remember_no_gpu_is_named(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run("import sys, types; sys.modules['jax'] = types.ModuleType('jax')")
    attached = kernel.run("%gpu attach 0.5")
    assert "jax was loaded while GPUs were hidden" in " ".join(attached.text.split())
    assert "jax was loaded" in kernel.run("%gpu").text, "and again, until CUDA is seen to work"
    assert kernel.run("%gpu release").ok
    sent = kernel.begin("%gpu attach 1 --restart")
    assert next_want(server, "restart").kernel == kernel.id
    kernel.manager.interrupt_kernel()
    assert kernel.finish(sent).status == "error"


def test_cuda_that_has_looked_in_vain_is_named(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run(SEEN)
    assert kernel.value("seen()") == []
    attached = kernel.run("%gpu attach 0.5")
    assert attached.ok and "CUDA was loaded while GPUs were hidden" in attached.text


def test_one_of_two_devices_is_released(server: Server) -> None:
    kernel = server.kernel("llm")
    kernel.run(SEEN)
    assert kernel.run("%gpu attach 2").ok
    first, second = server.driver.uuids
    assert kernel.run("%gpu release --device 0").ok
    assert [grant.device for grant in kernel.environment().grants] == [second]
    assert kernel.value("seen()") == [bare(second)]
    assert first not in (kernel.environment().environ or {}).values()


def test_too_late_is_said_after_capacity_and_changes_nothing(server: Server) -> None:
    kernel, other = server.kernel("debug"), server.kernel("llm")
    kernel.run(SEEN)
    assert kernel.run("%gpu attach --memory 4G --device 0").ok
    assert len(kernel.value("seen()")) == 1
    assert other.run("%gpu attach 1").ok
    before = kernel.environment()
    crowded = one_line(kernel.run("%gpu attach 1 --device 1"))
    assert "llm.ipynb of" in crowded and "holds all of it since" in crowded
    assert "CUDA" not in crowded, "capacity is judged first"
    assert other.run("%gpu release").ok
    late = one_line(kernel.run("%gpu attach 1 --device 1"))
    assert "CUDA is already initialised" in late and "--restart" in late
    assert kernel.environment().grants == before.grants


def test_restart_keeps_the_grant_and_stops_the_cells_behind(server: Server) -> None:
    kernel = server.kernel("debug")
    kernel.run(SEEN)
    assert kernel.run("%gpu attach --memory 4G").ok
    assert kernel.value("seen()") == [bare(server.driver.uuids[0])]
    kernel.begin("%gpu attach 2 --restart")
    assert next_want(server, "restart").kernel == kernel.id
    kernel.restart()
    kernel.run(SEEN)
    assert kernel.value("seen()") == [bare(uuid) for uuid in server.driver.uuids]
    again = kernel.run("%gpu attach 2 --restart")  # Run All
    assert again.ok and again.text.startswith("Attached already.")
    assert [grant.applied for grant in kernel.environment().grants] == ["live", "live"]


def test_restart_interrupts_and_fails_the_cell(server: Server) -> None:
    kernel = server.kernel("debug")
    assert kernel.run("%gpu attach 0.5").ok
    kernel.run(SEEN + "seen()")
    sent = kernel.begin("%gpu attach 0.25 --restart")  # the same device, another cap
    assert next_want(server, "restart").kernel == kernel.id
    kernel.manager.interrupt_kernel()  # what a server does first
    ran = kernel.finish(sent)
    assert ran.stdout.startswith("Attached; the kernel restarts")
    assert one_line(ran).startswith("Restarting: the cells behind this one are not run")


def test_restart_only_if_needed(server: Server) -> None:
    kernel = server.kernel("debug")
    pid = kernel.pid
    attached = kernel.run("%gpu attach 1 --restart")
    assert attached.ok and attached.text.startswith("Attached.")
    assert kernel.environment().applied == "live"
    assert kernel.value("__import__('os').getpid()") == pid


def test_release_with_a_living_context_drains_until_the_restart(server: Server) -> None:
    kernel, other = server.kernel("llm"), server.kernel("debug")
    kernel.run(SEEN)
    assert kernel.run("%gpu attach 1 --device 0").ok
    kernel.run("seen(); cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])")
    drained = kernel.run("%gpu release")
    assert drained.ok
    assert "still in use here" in drained.text and "restart to free" in drained.text
    assert "draining" in kernel.run("%gpu devices").text
    assert "draining" in one_line(other.run("%gpu attach 1 --device 0"))
    assert kernel.run("%gpu attach 1 --device 0").ok, "attaching again takes it back"
    sent = kernel.begin("%gpu release --restart")
    next_want(server, "restart")
    assert other.run("%gpu attach 1 --device 0").status == "error"
    kernel.restart()
    assert sent
    assert other.run("%gpu attach 1 --device 0").ok


def test_attach_without_arguments_takes_what_is_there_or_the_default(server: Server) -> None:
    kernel = server.kernel("llm", GENV_JUPYTER_DEFAULT_REQUEST="2G")
    assert kernel.run("%gpu attach").ok
    assert kernel.environment().request == Request(memory="2G")
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run("%gpu attach --name llama").ok
    assert kernel.environment().request == Request(fraction=0.5)
    assert kernel.environment().name == "llama"


def test_kernel_of_nobody_is_known_by_its_pid(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Kernel(tmp_path / "alone") as kernel:
        assert "was not started by a Jupyter server" in " ".join(kernel.run("%gpu").text.split())
        assert server.client.environments() == [], "looking makes no environment"
        assert kernel.run("%gpu attach 0.5").ok
        (made,) = server.client.environments()
        assert (made.kind, made.pid, made.server) == ("kernel", kernel.pid, None)
        kernel.run(SEEN)
        assert len(kernel.value("seen()")) == 1
        refused = one_line(kernel.run("%gpu attach 2 --restart"))
        assert "Restart it by hand" in refused
        assert server.client.environment(made.id).grants == made.grants


def test_child_of_a_kernel_is_not_its_environment(server: Server) -> None:
    """An inherited id is only a claim: the child gets an environment of its own."""
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --device 0").ok
    child = kernel.run("!{__import__('sys').executable} -m IPython -c '%gpu attach 0.5 --device 1'")
    assert "Attached." in child.stdout, child
    assert [grant.device for grant in kernel.environment().grants] == server.driver.uuids[:1]


def test_load_ext_and_the_stub_do_not_fight(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu").ok
    loaded = kernel.run("%load_ext genv_jupyter")
    assert (loaded.ok, loaded.stdout, loaded.stderr) == (True, "", "")
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run("%unload_ext genv_jupyter").ok
    assert "has a GPU" in kernel.run("%gpu").text, "the stub loads it again"


def test_kernel_behind_a_wrapper_is_known_by_its_connection_file(server: Server) -> None:
    """With `conda run` and the like the server knows the pid of a shell, not the kernel's."""
    kernel = server.kernel("llm", wrapped=True)
    assert kernel.value("__import__('os').getpid()") != kernel.pid
    assert kernel.run("%gpu attach 0.5").ok
    (made,) = server.client.environments()
    assert (made.id, made.applied) == (kernel.id, "live")
    kernel.run(SEEN)
    assert kernel.value("seen()") == [bare(made.grants[0].device)]


def test_inherited_pool_of_a_terminal_or_foreign_kernel_is_kept(
    server: Server, tmp_path: Path
) -> None:
    second = server.driver.uuids[1]
    with Kernel(tmp_path / "alone", {"CUDA_VISIBLE_DEVICES": second}) as kernel:
        assert "only what that names" in " ".join(kernel.run("%gpu").text.split())
        assert kernel.run("%gpu attach 0.5").ok
        assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == second
        assert "1 GPU here" in one_line(kernel.run("%gpu attach 2"))
        assert kernel.run("%gpu release").ok
        assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == second
