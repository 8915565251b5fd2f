"""The spawners of the tests, used by the Hub's process."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Unicode

from genv_jupyter.hub.spawner import GpuSpawnerMixin

_CAPABILITY = "+dac_read_search"


class RealUserSpawner(LocalProcessSpawner):
    """A ``LocalProcessSpawner`` for an interpreter that may lie where only root can read it.

    The server is its user's own, with all groups. It may still read files, which is not enough to
    look into anybody's process.
    """

    homes = Unicode(help="Directory of the users' home directories.", config=True)

    async def start(self) -> Any:
        entry = pwd.getpwnam(self.user.name)
        home = Path(self.homes, self.user.name)
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        program = shutil.which("setpriv")
        assert program is not None, "setpriv (util-linux) is not there"
        command = [program, f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
        command += [f"--inh-caps={_CAPABILITY}", f"--ambient-caps={_CAPABILITY}"]
        if self.cmd[0] != program:
            self.cmd = [*command, *self.cmd]
        self.popen_kwargs = {**self.popen_kwargs, "cwd": str(home)}
        return await super().start()

    def make_preexec_fn(self, name: str) -> None:
        """Leave it to ``setpriv``."""

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        home = str(Path(self.homes, self.user.name))
        return {**env, "USER": self.user.name, "HOME": home, "SHELL": "/bin/sh"}


class GpuRealUserSpawner(GpuSpawnerMixin, RealUserSpawner):  # type: ignore[misc]
    """The same with a GPU that the user chooses; whose name is ``broken`` does not start."""

    async def start(self) -> Any:
        if self.name == "broken":
            raise RuntimeError("This server does not start.")
        return await super().start()
