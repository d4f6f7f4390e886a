"""A SLURM cluster that does what a test tells it, and what launchers leave behind."""

from pipeline.core.config import CONFIGS
from pipeline.core.files import write_json
from pipeline.launch.queue import Answer, Job
from pipeline.results.records import Inputs, TrainRecord

OLD, NEW = Inputs(data="a" * 64, init="b" * 64), Inputs(data="c" * 64, init="b" * 64)


class Cluster:
    """Jobs by id, with their states; submitting and cancelling change them."""

    def __init__(self):
        self.states, self.cancelled, self.now, self.shown = {}, [], 1.0, 0

    def look(self, newer_than=0.0):
        self.now = max(self.now, newer_than) + 1
        jobs = {key: Job(key, state, "None", "n1", "job", str(CONFIGS.parent)) for key, state in self.states.items()}
        return Answer(self.now, jobs)

    def show(self, *states, at_the_end=None):
        """Each look shows the next state of job 7, with a reason after a colon: None where it is not in the queue.

        A problem stands in brackets.
        """

        def look(newer_than=0.0):
            state = states[self.shown]
            self.shown += 1
            if self.shown == len(states) and at_the_end:
                at_the_end()
            if state and state.startswith("("):
                return Answer(1.0, problem=state)
            state, _, reason = (state or "").partition(": ")
            job = Job("7", state, reason or "None", "n1", "job", str(CONFIGS.parent))
            return Answer(1.0, {"7": job} if state else {})

        self.look = look

    def submit(self):
        self.states["new"] = "PENDING"
        return "new"

    def cancel(self, job):
        self.cancelled.append(job)
        self.states[job] = "CANCELLED"
        return True


def finished(launcher, inputs):
    record = TrainRecord(run="run", metrics={}, files={}, inputs=inputs, provenance={})
    write_json(launcher.paths.finished, record.model_dump())


def reach(launcher, step):
    """The newest checkpoint is this one, also where there were later ones."""
    for later in launcher.paths.state.glob("step-*.pt"):
        later.unlink()
    path = launcher.paths.state / f"step-{step:09d}-0123456789abcdef.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
