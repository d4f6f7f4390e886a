"""Seeds every random draw by its purpose and its place in training: (seed, epoch, sample) or (seed, step, micro-batch).

Results therefore do not depend on the number of processes or workers, and a checkpoint needs no generator state.
"""

import hashlib
import random

import numpy as np
import torch


def seed_everything(*key: str | int) -> int:
    """Seed python, numpy and torch (and the GPU in use) from a key such as ("view", seed, epoch, index).

    Return the seed.
    """
    seed = _seed_of(*key)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed takes 0.25 ms, too long for every image; these two are what it does here.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    return seed


def random_state(generator: torch.Generator) -> tuple[bytes, ...]:
    """Return the states of this generator and of all that `seed_everything` seeds; they change with every draw."""
    states = [generator.get_state(), torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    others = repr((random.getstate(), np.random.get_state())).encode()
    return (*(state.numpy().tobytes() for state in states), others)


def generator_for(*key: str | int) -> torch.Generator:
    """Return a separate CPU generator, seeded the same way; all others stay as they are."""
    return torch.Generator().manual_seed(_seed_of(*key))


def _seed_of(*key: str | int) -> int:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
