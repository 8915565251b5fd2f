"""Our nvidia-smi beside NVIDIA's own, both over the same fake driver: the same bytes.

What NVIDIA's own needs of NVML beyond its published functions (the list of processes among it) is
not in the fake driver: of those lines the form is that of its published output, see
``tests/unit/test_smi.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from genv_jupyter.details import Details
from genv_jupyter.devices.nvml import NvmlSource
from genv_jupyter.isolation.smi import properties, view
from genv_jupyter.isolation.smi.report import Card, Report, SmiAnswer
from tests.debian import unpacked
from tests.fakedriver.driver import FakeDriver
from tests.fakedriver.scenario import MIB, device, mig_scenario, server_device

VERSION = "535.261.03"
"""Of Debian's package: it refuses to speak to a driver of another."""

SECRETS = re.compile("Uninitialized|Function Not Found")
"""What NVIDIA's own says where it asked functions that nobody has described: N/A from us."""

MOMENT = re.compile(r"\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}|\d{4}/\d\d/\d\d [\d:.]{12}")

DEVICES = (
    server_device(
        0,
        name="NVIDIA H100 80GB HBM3",
        power=71_500,
        pstate=12,
        power_limit=75_000,
        memory_reserved=0,
        memory_external=1234 * MIB,
    ),
    device(
        1,
        name="NVIDIA RTX A6000 with a long",
        memory_reserved=0,
        compute_mode=3,
        fan=100,
        pstate=8,
        ecc_mode=0,
        architecture=9,
        display_active=1,
        power=None,
        utilization=None,
    ),
    server_device(
        2,
        name="x" * 27,
        utilization={"gpu": 100, "memory": 3},
        memory_reserved=0,
        compute_mode=2,
        mig_capable=True,
        temperature=101,
        persistence_mode=0,
        ecc={"corrected": 3, "uncorrected": 17},
    ),
)


class Both(NamedTuple):
    """NVIDIA's program, and a report of the same devices for ours."""

    program: Path
    environ: dict[str, str]
    report: Report

    def real(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), *arguments],
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ours(self, *arguments: str) -> SmiAnswer:
        return view.render(arguments, lambda: self.report, hint="")


def read(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Report:
    """Read devices as a broker does, each as if it were wholly an environment's."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    source = NvmlSource(deadline=30)
    inventory = source.read(details=True)
    source.close()
    assert inventory.trouble is None
    cards = (
        Card(
            index=number,
            uuid=found.uuid,
            name=found.name,
            parent=found.parent,
            instance=found.instance,
            total=found.memory_total,
            used=found.memory_used,
            utilization=found.utilization,
            compute_mode=found.compute_mode,
            capability=found.capability,
            details=found.details or Details(),
        )
        for number, found in enumerate(inventory.devices)
    )
    return Report(
        cards=tuple(cards),
        driver=inventory.driver_version,
        cuda=inventory.cuda_version,
        now=datetime.now(),
    )


@pytest.fixture(scope="module")
def program() -> Path:
    return unpacked("nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture
def both(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    scenario = {"devices": list(DEVICES), "driver_version": VERSION, "cuda_version": 12020}
    with FakeDriver(tmp_path / "driver", scenario) as driver:  # type: ignore[arg-type]
        yield Both(program, driver.environ, read(driver.environ, monkeypatch))


def plain(text: str) -> list[str]:
    return SECRETS.sub("N/A", MOMENT.sub("(now)", text)).split("\n")


SAME = (
    "",
    "-i 1",
    "-i 2,0",
    f"-i {DEVICES[1]['uuid']}",
    "-i 1650322200002",
    "-i 7",
    "-i foo",
    "-L",
    "--list-gpus",
    "-q",
    "-q -i 1",
    "-q -d MEMORY,COMPUTE,PIDS",
    "-q -d ECC,TEMPERATURE,PERFORMANCE",
    "-q -x",
    "-q --xml-format --id=2",
    "--query-gpu=gpu_name,clocks.gr,clocks.max.mem --format=csv,nounits",
    "--query-gpu name --format csv",
    "--query-gpu=index,memory.used --format=csv,noheader,nounits -i 0,7",
    "--query-gpu=name, --format=csv",
    # what is refused
    "--query-gpu=name,foo --format=csv",
    "--query-gpu=NAME --format=csv",
    "--query-compute-apps=foo --format=csv",
    "--query-gpu=name",
    "--query-gpu=name --format=csv,foo",
    "--query-gpu=name --format=nounits",
    "--format=csv",
    "-q --query-gpu=name --format=csv",
    "-L -i 1",
    "-L -q",
    "-L --query-gpu=name",
    "-x",
    "-q -x -d MEMORY",
    "-q -d FOO",
    "-i",
    "-l 0",
)


def test_what_is_written_and_the_exit_code_are_the_same(both: Both) -> None:
    for line in SAME:
        real, ours = both.real(*line.split()), both.ours(*line.split())
        assert plain(ours.stdout) == plain(real.stdout), line
        assert ours.exit_code == real.returncode, line
        assert (ours.stderr, real.stderr) == ("", ""), line


def test_every_property_is_the_same(both: Both) -> None:
    """All that NVIDIA's own lists, but for those it takes from where nobody else can look."""
    listed = re.findall(r'^"([\w.]+)"', both.real("--help-query-gpu").stdout, re.M)
    names = [name for name in listed if "vgpu" not in name]
    known = {name for one in properties.GPU for name in (one.name, *one.aliases)}
    assert [name for name in names if name not in known] == []
    for name in set(names) - {"power.draw.average", "enforced.power.limit"}:
        question = (f"--query-gpu={name}", "--format=csv")
        assert plain(both.ours(*question).stdout) == plain(both.real(*question).stdout), name


def test_the_properties_of_processes_have_the_same_heads(both: Both) -> None:
    listed = re.findall(r'^"(\w+)"', both.real("--help-query-compute-apps").stdout, re.M)
    question = (f"--query-compute-apps={','.join(listed)}", "--format=csv")
    assert len(listed) == 8
    head = both.real(*question).stdout.split("\n")[0]
    assert both.ours(*question).stdout == f"{head}\n"


def test_xml_has_the_same_elements_in_the_same_order(both: Both) -> None:
    real, ours = (
        [element.tag for element in ElementTree.fromstring(text).iter()]
        for text in (both.real("-q", "-x").stdout, both.ours("-q", "-x").stdout)
    )
    assert len(ours) > 500
    assert ours == real


def test_no_device_is_said_in_the_same_words(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = {"devices": [], "driver_version": VERSION}
    with FakeDriver(tmp_path / "driver", scenario) as driver:  # type: ignore[arg-type]
        nothing = Report(cards=(), driver=VERSION, cuda=None, now=datetime.now())
        both = Both(program, driver.environ, nothing)
        for line in ("", "-L", "-q", "-q -x", "--query-gpu=name --format=csv"):
            real, ours = both.real(*line.split()), both.ours(*line.split())
            assert (ours.stdout, ours.exit_code) == (real.stdout, real.returncode), line


def test_instances_stand_under_their_gpu_in_the_same_words(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = mig_scenario() | {"driver_version": VERSION}
    with FakeDriver(tmp_path / "driver", scenario) as driver:  # type: ignore[arg-type]
        both = Both(program, driver.environ, read(driver.environ, monkeypatch))
        assert both.ours("-L").stdout == both.real("-L").stdout


def test_rounds_of_a_loop_have_one_head(both: Both) -> None:
    question = ("--query-gpu=index", "--format=csv", "-lms", "50")
    running = subprocess.Popen(
        [str(both.program), *question], env=os.environ | both.environ, stdout=-1, text=True
    )
    assert running.stdout is not None
    try:
        real = [running.stdout.readline() for _ in range(9)]
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
    rounds = [view.render(question, lambda: both.report, number) for number in range(3)]
    assert {one.repeat for one in rounds} == {50}
    text = "".join(one.stdout for one in rounds)
    assert text.splitlines(keepends=True)[:9] == real
