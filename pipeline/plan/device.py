"""What a site trains on, and how fast a CPU multiplies matrices; both without importing torch."""

import functools
import os
import time

from pipeline.launch.gpus import gpus_of
from pipeline.site import Site


def trains_on_gpu(site: Site) -> bool:
    """Whether each training process of this site has a GPU; a cluster's login node need not have one."""
    if site.slurm:
        return bool(site.slurm.gres)
    if site.device != "auto":
        return site.device == "cuda"
    return bool(gpus_of(site))


@functools.cache
def matmul_gflop_per_s(num_threads: int | None = None) -> float:
    """The best of a few products of matrices with so many threads (by default all), in a fraction of a second."""
    import numpy as np

    side, seconds = 768, []
    matrix = np.random.default_rng(0).random((side, side), dtype=np.float32)
    for _ in range(10):
        started = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - started)
    num_used = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    return 2 * side**3 / min(seconds) / 1e9 * (num_threads or num_used) / num_used
