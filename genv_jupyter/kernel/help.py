"""What ``%gpu help`` and ``%gpu?`` show."""

from __future__ import annotations

from genv_jupyter.kernel.document import Text, Title
from genv_jupyter.kernel.views import PageView

TEXT = """\
%gpu                         what this kernel has, and what is free
%gpu attach 0.5              half of a GPU: of its memory, and of compute
%gpu attach 1                a whole GPU, for this kernel alone (2: two of them)
%gpu attach --memory 4G      a place of 4 GB on a shared GPU, no compute ceiling
      --device D             this GPU: index, UUID, or the beginning of a UUID
      --name N               a name for others to see (else the notebook's)
      --processes P          how many processes of yours will use it
      --restart              restart the kernel, if that is what it takes
%gpu release                 give everything back (also: %gpu detach)
      --device D             give one GPU back
      --restart              restart the kernel, if its CUDA still holds the GPU
%gpu devices                 every GPU: how full, who holds how much since when
%gpu envs                    every environment: notebooks, terminals, commands
%gpu doctor                  driver, pool, broker, and how strong limits are"""

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
