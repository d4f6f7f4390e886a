import sys

try:
    from pipeline.cli import main

    code = main()
except KeyboardInterrupt:  # while modules were still being imported
    sys.stderr.write("interrupted; the same command continues\n")
    code = 75

from pipeline.processes import leave

leave(code)
