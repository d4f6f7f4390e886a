"""Runs a module whose own processes are forks, too: of the `python` of PATH that warm_python.py makes."""

import runpy
import shutil
import sys

sys.executable = shutil.which("python")
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
