"""Errors a user can act on: each message says what was found, what was expected, and what to do.

`cli.py` prints them as one message without a traceback; anything else is a bug and keeps its traceback.
"""

import errno

STORAGE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


class PatchworkError(Exception):
    """Base of every error that the user can fix."""


class ConfigError(PatchworkError):
    """A config file, a key, a value, or a combination of them is wrong."""


class DataError(PatchworkError):
    """A data set is missing, incomplete, damaged, or not what its config says."""


class ContractError(PatchworkError):
    """The code of a method, an evaluation or a kind of data does not do what it must."""


class CheckpointError(PatchworkError):
    """A checkpoint or weight file cannot be used."""


class NumericsError(PatchworkError):
    """Training left the finite numbers more often than the recipe allows, or a model gave outputs outside of them."""


class DeviceMemoryError(PatchworkError):
    """A GPU has less memory than a job needs."""


class LaunchError(PatchworkError):
    """A job could not be started or did not come back."""


def storage_problem(error: OSError) -> str:
    """The message for a full disk or a missing permission; empty for any other error, which is a bug of ours."""
    if error.errno not in STORAGE:
        return ""
    return (
        f"could not use {error.filename or 'a file'}: {error.strerror}; free space or fix the permissions, then start "
        "again: nothing that was there before is lost"
    )
