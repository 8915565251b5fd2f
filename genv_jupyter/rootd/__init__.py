"""What root does for the broker of a host, and nothing else is done as root.

``parent`` starts everything and gives up its rights for the broker; ``helper`` has the verbs, in
``wire``; ``mode`` sets a compute mode and ``shelf`` writes what is first in the PATH of users, each
in a process of its own; ``relay`` passes on what systemd is told. ``client`` is the broker's end.
"""
