"""Pixels that a device makes against those of Pillow."""

import platform

import numpy as np

# ARM's processors round a product and a sum once, and Pillow is built to use that there; x86's, and we, round twice.
# Pillow cuts fractions off, so a warped value that lies next to a whole number may come out one level apart.
IS_BUILT_AS_WE_COMPUTE = platform.machine() == "x86_64"
FEW = 1 / 2000


def same_as_pillows(found, expected) -> bool:
    """Equal; where Pillow rounds in another way, but for one level in a few values."""
    apart = np.abs(np.asarray(found).astype(int) - np.asarray(expected).astype(int))
    return apart.max() <= (0 if IS_BUILT_AS_WE_COMPUTE else 1) and np.count_nonzero(apart) <= FEW * apart.size
