"""Make ``%gpu`` known to IPython (part of genv-jupyter); leaves no name behind, and never fails."""

try:
    __import__("genv_jupyter_stub").start()
except Exception:  # noqa: SIM105 - the package was removed, and this file has stayed
    pass
