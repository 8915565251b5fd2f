"""``python -m genv_jupyter.cli``."""

from genv_jupyter.cli.main import main

main(prog_name="jupyter gpu")
