"""JupyterHub: GPUs reserved before servers start, and its GPU page, as a service of the Hub."""
