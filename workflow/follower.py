"""Snakemake's hooks: the process that follows the results into MLflow starts and ends with the workflow."""

import signal
import subprocess
import sys

from pipeline.results import results_of

LAST_PASS_S = 60  # a workflow ends no later than this after its last job, whatever MLflow does


class Follower:
    """`python -m pipeline track --follow` in the background; it logs to logs/track.log."""

    def __init__(self, scale: str) -> None:
        self.scale = scale
        self.log = results_of(scale).track_log
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self._launch("--follow")

    def stop(self) -> str:
        """Let it finish, within bounds; returns the last line of its log."""
        if self.process is None:
            return ""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        else:  # another follower ran already, or this one was killed: MLflow lacks what came later
            self._launch()
        try:
            if self.process.wait(LAST_PASS_S) == -signal.SIGTERM:  # it had not begun to listen
                self._launch()
                self.process.wait(LAST_PASS_S)
        except subprocess.TimeoutExpired:
            return f"MLflow is still being brought up to date in the background: {self.log}"
        return next(reversed(self.log.read_text().splitlines()), "")

    def _launch(self, *options: str) -> None:
        """In a session of its own: Ctrl-C is for the jobs, and their last lines are still mirrored."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "track", "--scale", self.scale, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
