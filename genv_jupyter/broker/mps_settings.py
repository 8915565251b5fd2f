"""Whose MPS daemons a broker uses: its own, or one that the operator of the host runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from traitlets import Bool, TraitError, Unicode, validate
from traitlets.config import Configurable
from traitlets.utils.bunch import Bunch

from genv_jupyter.isolation.environ import NO_MPS
from genv_jupyter.isolation.inherited import OPERATORS_MPS
from genv_jupyter.isolation.mps import Daemons, Post
from genv_jupyter.isolation.mps_operator import OperatorsDaemons
from genv_jupyter.isolation.powers import Powers

INHERITED = "inherited"


class MpsDaemons(Configurable):
    """Whose daemons of NVIDIA's MPS are used."""

    pipe_directory = Unicode(
        "",
        help="The CUDA_MPS_PIPE_DIRECTORY of an MPS daemon that the operator of the host runs, to "
        "be used instead of daemons of the broker's own; it is never started, changed or ended. "
        "'inherited': the one that was set where the broker was started from (by a Jupyter server, "
        "say), if one was. Empty: the broker's own.",
    ).tag(config=True)

    exclusive_mode = Bool(
        False,
        help="Whether a device that one user shares under MPS is put into compute mode exclusive "
        "process meanwhile, so that no process gets in beside MPS: neither of another user nor "
        "without MPS. What the mode was is put back afterwards. Only for the daemon of a host, "
        "with its root helper (or run as root), and with MPS daemons of its own.",
    ).tag(config=True)

    @validate("pipe_directory")
    def _absolute(self, proposal: Bunch) -> str:
        value = str(proposal["value"])
        if value in ("", INHERITED) or Path(value).is_absolute():
            return value
        raise TraitError(
            f"pipe_directory: {value!r} is neither an absolute path nor '{INHERITED}'."
        )

    def against_exclusive_mode(self, *, host: bool, helper: bool = False) -> str | None:
        """Say why ``exclusive_mode``, if it is set, cannot be obeyed here.

        ``helper`` says that there is a root helper that can.
        """
        if not self.exclusive_mode:
            return None
        if not host:
            why = "a compute mode is everybody's, so only the daemon of a host changes it"
        elif os.geteuid() != 0 and not helper:
            why = "only root may change a compute mode, and here is neither it nor its helper"
        elif self.pipe_directory:
            why = "it is for MPS daemons of the broker's own, and pipe_directory names another's"
        else:
            return None
        return f"MpsDaemons.exclusive_mode: {why}."

    def daemons(
        self,
        directory: Path,
        needs: Callable[[], Mapping[Post, int]],
        program: str,
        steady: Callable[[], float],
        powers: Powers,
    ) -> Daemons:
        """Return the daemons; ``directory`` is where the broker's own would be."""
        chosen = self.pipe_directory
        if chosen == INHERITED:
            chosen = os.environ.get(OPERATORS_MPS, "")
            if chosen == NO_MPS or not Path(chosen).is_absolute():
                chosen = ""
        if chosen:
            return OperatorsDaemons(Path(chosen), needs, program, steady)
        return powers.daemons(directory, needs, program, steady)
