"""Who else may write to a file, as its mode and its group say."""

from __future__ import annotations

import grp
import os
import pwd
import stat


def others_may_write(found: os.stat_result) -> bool:
    """Say whether anybody but a file's owner may write to it.

    The group counts only if it has others in it: many systems give each user one alone, and let
    it write.
    """
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and _shared(found)))


def _shared(found: os.stat_result) -> bool:
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    alone = group.gr_name == user.pw_name and group.gr_gid == user.pw_gid
    return not alone or bool(set(group.gr_mem) - {user.pw_name})
