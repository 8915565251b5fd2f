"""Names that stand in several files, since those may import nothing: they must be the same."""

from __future__ import annotations

from pathlib import Path

import genv_jupyter_stub as stub
from genv_jupyter.isolation import caps, environ, live, processes
from genv_jupyter.isolation.smi import program, view


def test_stub_knows_variables_by_their_names() -> None:
    assert stub.VISIBLE == environ.VISIBLE
    assert stub.MARKER == environ.MARKER
    assert stub.LIMIT == caps.LIMIT
    assert stub.BEFORE == caps.BEFORE
    assert stub.PROGRAMS == live.PROGRAMS
    assert stub.NVML_CHECK == live._NVML_CHECK


def test_file_that_is_sent_to_kernels_knows_variables_by_their_names() -> None:
    assert live._VISIBLE == environ.VISIBLE
    assert live._MARKER == environ.MARKER
    assert live._REVISION == environ.REVISION
    assert processes.MARKER == environ.MARKER


def test_nvidia_smi_knows_variables_by_their_names() -> None:
    source = Path(program.__file__).read_text(encoding="utf-8")
    for name in (environ.MARKER, environ.VISIBLE, "GENV_JUPYTER_BYPASS"):
        assert f'b"{name}"' in source
    assert view.BYPASS.startswith("GENV_JUPYTER_BYPASS=1 ")
