"""Tests with a real JupyterHub."""
