"""The Jupyter server extension and the kernel provisioner: faces of the broker."""
