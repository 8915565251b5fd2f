# A JupyterHub whose users choose a GPU before their server starts, with its GPU page and a culler
# of idle servers. The daemon's side is in docs/host-daemon.md, all of this in docs/hub.md.
import sys

c = get_config()  # noqa

# Servers as Unix users of the host. Root, which the Hub runs as, administers GPUs by default.
c.JupyterHub.spawner_class = "genv_jupyter.hub.spawner.GpuLocalProcessSpawner"
c.GpuReservations.choices = {
    "none": {"label": "No GPU", "request": None},
    "half": {"label": "Half a GPU", "request": {"fraction": 0.5}},
    "whole": {"label": "One GPU", "request": {"gpus": 1}},
}
c.GpuReservations.when_down = "refuse"

c.JupyterHub.custom_scopes = {
    "custom:genv-jupyter:use": {"description": "Use GPUs"},
    "custom:genv-jupyter:admin": {"description": "Administer the GPUs of the host"},
}

c.JupyterHub.services = [
    {
        "name": "gpu",
        "url": "http://127.0.0.1:10109",
        "command": [sys.executable, "-m", "genv_jupyter.hub"],
        # useradd --system --no-create-home --shell /usr/sbin/nologin genv-jupyter-page
        # Without it the page, which parses what every browser sends, runs as root like the Hub.
        "user": "genv-jupyter-page",
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": [
            "access:services!service=gpu",
            "read:users:groups!user",
            "custom:genv-jupyter:use!user",
            "custom:genv-jupyter:admin",
        ],
    },
    {
        "name": "culler",  # pip install jupyterhub-idle-culler
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600"],
    },
]

c.JupyterHub.load_roles = [
    # What the default role of users has ("self"), and what the page needs.
    {
        "name": "user",
        "scopes": ["self", "access:services!service=gpu", "custom:genv-jupyter:use!user"],
    },
    # Who sees and ends what others hold, and sets quotas.
    {
        "name": "gpu-admin",
        "scopes": ["custom:genv-jupyter:admin"],
        "groups": ["gpu-admins"],
    },
    {
        "name": "culler",
        "services": ["culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    },
]
c.JupyterHub.load_groups = {"gpu-admins": {"users": []}}
