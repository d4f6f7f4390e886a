import gc
import sys

try:
    # torch and timm make millions of objects that stay: looking for garbage among them is a tenth of the time to start.
    gc.set_threshold(20_000)
    from pipeline.cli import main

    code = main()
except KeyboardInterrupt:  # while modules were still being imported
    sys.stderr.write("interrupted; the same command continues\n")
    code = 75

from pipeline.core.processes import leave

leave(code)
