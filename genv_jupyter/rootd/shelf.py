"""Writing the environments' ``nvidia-smi`` as root, in a process of its own that ends with it.

Users have its directory first in PATH. Were it the broker's, whoever took that over could have
users run what they like.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from genv_jupyter.isolation.smi.install import install
from genv_jupyter.rootd.helper import say
from genv_jupyter.rootd.parent import Unsafe, own


def lay(address: str, places: Sequence[Path]) -> str | None:
    """Write it, and return the first directory of root's from which it can be run."""
    said = []
    for place in places:
        try:
            found = install(own(place, 0o755), address, everybody=True)
        except (Unsafe, OSError) as error:
            said.append(str(error))
            continue
        if found is not None:
            return found
        said.append(f"no program may be run from {place}")
    say(f"nvidia-smi of environments has no place: {'; '.join(said)}")
    return None


if __name__ == "__main__":
    os.umask(0o077)
    print(lay(sys.argv[1], [Path(it) for it in sys.argv[2:]]) or "")
