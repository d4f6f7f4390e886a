"""`python -m pipeline` whose own processes are forks, too: of the `python` of PATH that warm_python.py makes."""

import runpy
import shutil
import sys

sys.executable = shutil.which("python")
runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
