"""What ``%gpu help`` and ``%gpu?`` show."""

from __future__ import annotations

from genv_jupyter.kernel.document import Text, Title
from genv_jupyter.kernel.parsing import TEXT
from genv_jupyter.kernel.views import PageView

NOTES = (
    "4G is 4·10⁹ bytes, 4GiB is 4·2³⁰. Attaching again replaces the request; when it is refused, "
    "what you have stays. Asking for what is already there changes nothing.",
    "A GPU is seen by CUDA only if it is attached before CUDA initialises. Afterwards a restart is "
    "needed, and the grant is kept over it.",
    "Hidden by default: a kernel without a grant sees no GPU. To change that, set "
    "GenvJupyterApp.unattached (hide, all) and GenvJupyterApp.on_import (notice, attach, off) for "
    "the Jupyter server.",
)


def view() -> PageView:
    """Return the help as a page."""
    return PageView(
        [Title("%gpu: GPUs for this kernel"), Text(TEXT, "code"), *(Text(note) for note in NOTES)]
    )
