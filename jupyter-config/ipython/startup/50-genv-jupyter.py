"""Make ``%gpu`` known to IPython (part of genv-jupyter); leaves no name behind, and never fails."""

try:  # noqa: SIM105 (importing contextlib would leave a name, and cost every kernel)
    __import__("genv_jupyter_stub").start()
except Exception:  # the package was removed, and this file has stayed
    pass
