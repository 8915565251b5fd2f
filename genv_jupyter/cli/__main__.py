"""``python -m genv_jupyter.cli``."""

from genv_jupyter.cli.start import main

main()
