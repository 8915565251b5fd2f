"""JupyterHub: its GPU page, as a service of the Hub."""
