"""What genv-jupyter costs a kernel that never uses it.

IPython's startup file calls ``start``. It hides the devices where the policy says so, makes
``%gpu`` known, and watches for imports of GPU frameworks; the rest of the product is imported when
it is first needed. Only ``os`` and ``sys`` are imported here, and no error leaves ``start``:
whatever is broken on our side, the kernel starts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
MARKER = "GENV_JUPYTER_ENVIRONMENT"
UNATTACHED = "GENV_JUPYTER_UNATTACHED"
ON_IMPORT = "GENV_JUPYTER_ON_IMPORT"
NOTICE = "GENV_JUPYTER_NOTICE"
PROGRAMS = "GENV_JUPYTER_PROGRAMS"
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Makes ``torch.cuda.is_available()`` ask NVML. Otherwise it asks CUDA's runtime, which remembers
for the life of the process that it found no device, and never sees what is attached later."""

LIMIT = "GENV_JUPYTER_MEMORY_LIMIT"
BEFORE = "GENV_JUPYTER_MEMORY_BEFORE"

FRAMEWORKS = ("torch", "tensorflow", "jax", "cupy", "numba.cuda")
LIMITED = ("torch", "tensorflow", "jax", "cupy", "rmm", "vllm")
"""What is told of the memory limit when it is imported (``genv_jupyter.kernel.frameworks``)."""


class Stub:
    """The product as a kernel knows it before its first use.

    Attributes
    ----------
    expected
        What we have set ``CUDA_VISIBLE_DEVICES`` to; ``None`` when it is not ours to look after.
        Whoever applies a grant changes it (``genv_jupyter.isolation.live``).
    remembering
        What may have looked for devices while they were hidden, and so may not see those attached;
        ``warned``: whether that was said.
    notice
        A sentence of the provisioner, when something was broken on our side at the start.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        managed = MARKER in os.environ or NOTICE in os.environ
        # Taken out: an IPython that is started from here must not hide what is attached by then.
        unattached = os.environ.pop(UNATTACHED, None)
        if unattached == "hide":
            os.environ[VISIBLE] = ""
            programs, path = os.environ.get(PROGRAMS), os.environ.get("PATH", os.defpath)
            if programs and not path.startswith(f"{programs}:"):
                os.environ["PATH"] = f"{programs}:{path}"  # nvidia-smi sees what this kernel sees
        if managed and (unattached or os.environ.get(VISIBLE) == ""):
            os.environ.setdefault(NVML_CHECK, "1")
        self.on_import = os.environ.pop(ON_IMPORT, "notice")
        self.notice = os.environ.pop(NOTICE, None)
        self.expected = os.environ.get(VISIBLE) if managed else None
        self.told = False
        self.remembering: list[str] = []
        self.warned = False
        shell.register_magic_function(self.gpu, "line_cell", "gpu")
        shell.events.register("post_run_cell", self.after_cell)
        shell.Completer.custom_matchers.append(self.complete)
        shell.input_transformers_cleanup.append(asked)
        self.watching = managed and self.on_import != "off"
        if self.watching:
            sys.meta_path.insert(0, self)
        if LIMIT in os.environ:
            for line in self.follow():
                say(f"GPU: {line}")
        if self.notice:
            shell.events.register("pre_run_cell", self.first_cell)

    def gpu(self, line: str, cell: str | None = None) -> Any:
        """Attach GPUs to this kernel: ``%gpu`` shows what it has, ``%gpu help`` how to use it."""
        try:
            from genv_jupyter.kernel.magics import load_ipython_extension
        except ImportError as error:
            from IPython.core.error import UsageError

            raise UsageError(
                f"%gpu cannot run in this Python environment ({error}). `pip install genv-jupyter` "
                "here, and restart the kernel."
            ) from error
        load_ipython_extension(self.shell)
        if cell is not None:
            return self.shell.find_cell_magic("gpu")(line, cell)
        return self.shell.find_line_magic("gpu")(line)

    def complete(self, context: Any) -> Any:
        """Complete a line of ``%gpu``: a matcher of IPython."""
        try:
            if "%gpu" in context.text_until_cursor:
                from genv_jupyter.kernel.completing import match

                return match(context)
        except ImportError:
            pass  # `%gpu` itself says so
        return {"completions": []}

    complete.matcher_api_version = 2  # type: ignore[attr-defined]
    complete.matcher_identifier = "genv_jupyter"  # type: ignore[attr-defined]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finder of ``sys.meta_path``: find a framework as the others do, and say a word first."""
        if name not in FRAMEWORKS and name not in LIMITED:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if name in FRAMEWORKS:
                        self.imported(name)
                    return self.limited(name, spec)
        return None  # not installed: nothing will run on a CPU by mistake

    def imported(self, framework: str) -> None:
        """Say that GPUs are hidden, or attach the default request; once, and only while hidden."""
        if not self.watching or os.environ.get(VISIBLE) != "" or self.expected != "":
            return
        self.watching = False
        try:
            if self.on_import == "attach":
                from genv_jupyter.kernel.session import attach_for

                print(attach_for(self.shell, framework), flush=True)
                return
            say(
                f"GPU: GPUs are hidden from this kernel, so {framework} will run on the CPU. "
                f"{self.notice or ''} To attach one: %gpu attach 0.5. "
                "To change this: GenvJupyterApp.on_import (%gpu help)."
            )
        except Exception as error:  # the import of a framework must not fail because of us
            say(f"GPU: nothing was attached for {framework}, it will run on the CPU. {error}")

    def limited(self, name: str, spec: Any) -> Any:
        """Return a framework's spec, with a hook behind its import where memory is limited."""
        if LIMIT not in os.environ or name not in LIMITED:
            return spec
        try:
            from genv_jupyter.kernel.frameworks import hooked

            return hooked(name, spec)
        except Exception as error:  # the import of a framework must not fail because of us
            say(f"GPU: {name} was not told of the memory that is attached here. {error}")
            return spec

    def follow(self) -> list[str]:
        """Have frameworks keep to the limit that the variables name now; return what to say."""
        told = "genv_jupyter.kernel.frameworks" in sys.modules
        if LIMIT not in os.environ and BEFORE not in os.environ and not told:
            return []  # there never was one
        here = LIMIT in os.environ and any(name in sys.modules for name in LIMITED)
        try:
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
            if told or here:
                from genv_jupyter.kernel import frameworks

                return frameworks.follow()
            from genv_jupyter.isolation import caps

            caps.settle(os.environ, caps.installed())
            return []
        except Exception as error:  # the kernel starts, and what was attached stays attached
            return [f"Frameworks were not told of the memory that is attached here. {error}"]

    def after_cell(self, result: Any = None) -> None:
        """Say what an error of a GPU's memory means; and, once each, that what is attached now may
        not be seen, and that a cell has overwritten ``CUDA_VISIBLE_DEVICES``.
        """
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            from genv_jupyter.kernel import memory_errors

            memory_errors.explain(self.shell, error)
        if self.remembering and not self.warned:  # attached from elsewhere: `%gpu` says it itself
            from genv_jupyter.isolation import live

            self.warned = True
            if live.cuda_state() == "not_initialized":
                say(f"GPU: {live.remembered(self.remembering)}")
        visible = os.environ.get(VISIBLE)
        if self.told or self.expected is None or visible == self.expected:
            return
        if visible is not None and _parts(visible) <= _parts(self.expected):
            return  # only narrowed
        self.told = True
        now = "not set" if visible is None else repr(visible)
        before = "what is attached here" if self.expected else "empty, to hide the GPUs"
        say(
            f"GPU: {VISIBLE} is {now} now; it was {before}. Devices that are used past the broker "
            "may belong to somebody else. `%gpu` shows what this kernel has, `%gpu attach …` sets "
            "the variable for you."
        )

    def first_cell(self, info: Any = None) -> None:
        """Show the provisioner's sentence in the first cell that is run."""
        self.shell.events.unregister("pre_run_cell", self.first_cell)
        say(f"GPU: {self.notice}")


def asked(lines: list[str]) -> list[str]:
    """Have ``%gpu attach?`` ask about the verb: IPython would look for an object ``attach``.

    What ``%gpu ask`` asks is for somebody else.
    """
    return [_understood(line) if line.startswith("%gpu ") else line for line in lines]


def _understood(line: str) -> str:
    words = line.split()
    if not words[-1].endswith("?"):
        return line
    if words[1] == "ask" and len(words) > 2:
        return f"get_ipython().run_line_magic('gpu', {line[len('%gpu ') :].strip()!r})\n"
    return f"%gpu help {words[1].rstrip('?')}\n" if len(words) == 2 else line


def _parts(value: str | None) -> set[str]:
    return set((value or "").split(",")) - {""}


def say(text: str) -> None:
    """Write one line into the output of the cell that runs, as warnings are.

    Names in it may be somebody else's: they do nothing to a terminal.
    """
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    try:  # noqa: SIM105 (no import for this)
        print(line, file=sys.stderr, flush=True)
    except Exception:  # closed, or a cell's own: an import must not fail because nobody listens
        pass


stub: Stub | None = None
"""The stub of this process, once started."""


def start() -> None:
    """Start the stub in the IPython of this process; never raises."""
    global stub
    try:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and stub is None:
            stub = Stub(shell)
    except Exception as error:  # a kernel starts, whatever is broken here
        if os.environ.get(UNATTACHED) == "hide":
            os.environ[VISIBLE] = ""
        print(f"genv-jupyter: %gpu was not loaded: {error!r}", file=sys.stderr)
