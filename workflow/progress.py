"""How far a call of Snakemake is, and how long the rest takes: arithmetic on its jobs, without Snakemake or a terminal.

A job that is still to come takes as long per image as finished ones of its kind, in this call or in earlier ones;
without any, as running ones do. The jobs are divided by as many as ran at a time so far, and nothing ends before the
longest chain of jobs that wait for each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Seconds of a job of a rule that has not run yet; training runs have no such guess.
FIRST_GUESS_S = {"prepare_data": 5.0, "evaluate": 20.0, "draw_table": 4.0, "draw_figure": 5.0, "write_report": 20.0}
OTHER_GUESS_S = 2.0
SHORTEST_TRAINING = 8  # characters in the line, at least
SEPARATOR = " | "


@dataclass(frozen=True)
class PlannedJob:
    """One job of this call."""

    id: int
    rule: str
    name: str = ""  # of the run or of the evaluation job
    kind: str = ""  # jobs of one kind take as long as their size says
    size: float = 1.0  # images that a training run has yet to process; 0: nothing is left to do
    after: tuple[int, ...] = ()  # jobs of this call that come first


@dataclass
class Step:
    """What a training run has written about itself."""

    step: int
    total: int
    epochs: float | None = None  # of the whole training, where it is counted in epochs

    def __str__(self) -> str:
        if not self.epochs:
            return f"{100 * self.step / self.total:.0f} %"
        return f"epoch {min(int(self.epochs), int(self.step / self.total * self.epochs) + 1)} of {self.epochs:g}"


@dataclass
class Running:
    """A job that has started."""

    since: float
    stale: int | None = None  # the step that an earlier attempt left, until this one writes of itself
    first: tuple[float, int] | None = None  # when it was first seen at a step, and at which
    last: tuple[float, int] | None = None
    step: Step | None = None

    def see(self, step: Step, now: float) -> None:
        """A training that continues goes back to its checkpoint, which may lie before what was seen last."""
        if self.last is not None and step.step < self.last[1]:
            self.first = self.last = None
        if step.step == self.stale:
            return
        self.stale, self.step = None, step
        self.first = self.first or (now, step.step)
        if self.last is None or step.step > self.last[1]:
            self.last = (now, step.step)

    def seconds_left(self) -> float | None:
        """From the speed between two looks: what comes before the first step says nothing about it."""
        if not (self.step and self.first and self.last and self.last[1] > self.first[1]):
            return None
        pace = (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
        return pace * (self.step.total - self.last[1])


@dataclass
class Progress:
    """The jobs of one call."""

    jobs: dict[int, PlannedJob]
    start: float
    earlier: Mapping[str, float] = field(default_factory=dict)  # kind -> seconds per unit of size, in earlier calls
    running: dict[int, Running] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> seconds and sizes of finished jobs
    busy_s: float = 0.0  # of all jobs that have ended

    def __post_init__(self) -> None:
        self.order = _inputs_first(self.jobs)

    def begin(self, ids: Iterable[int], now: float, stale: Mapping[int, int] | None = None) -> None:
        """`stale` has the last steps of earlier attempts of training runs."""
        for each in ids:
            if each in self.jobs:
                self.failed.discard(each)
                self.running[each] = Running(now, (stale or {}).get(each))

    def finish(self, id: int, now: float) -> None:
        if id not in self.jobs:
            return
        self.done.add(id)
        seconds = self._end(id, now)
        if seconds and self.jobs[id].size:
            total, size = self.spent.get(self.jobs[id].kind, (0.0, 0.0))
            self.spent[self.jobs[id].kind] = total + seconds, size + self.jobs[id].size

    def fail(self, id: int, now: float) -> None:
        if id in self.jobs:
            self._end(id, now)
            self.failed.add(id)

    def _end(self, id: int, now: float) -> float:
        seconds = now - self.running.pop(id).since if id in self.running else 0.0
        self.busy_s += seconds
        return seconds

    # Time left

    def seconds_left(self, now: float) -> float | None:
        """None while it is unknown how long training runs take, or when failed jobs leave nothing to wait for."""
        pace, lost = self._pace(now), self._lost()
        left: dict[int, float] = {}
        ends: dict[int, float] = {}  # seconds until a job has ended if nothing but its chain held it up
        for each in self.order:
            if each in self.done or each in lost:
                continue
            seconds = self._job_left(each, pace, now)
            if seconds is None:
                return None
            left[each] = seconds
            ends[each] = seconds + max((ends.get(before, 0.0) for before in self.jobs[each].after), default=0.0)
        return max(sum(left.values()) / self._jobs_at_a_time(now), max(ends.values(), default=0.0))

    def _jobs_at_a_time(self, now: float) -> float:
        busy = self.busy_s + sum(now - job.since for job in self.running.values())
        return max(1.0, busy / max(now - self.start, 1e-9))

    def _lost(self) -> set[int]:
        """Jobs that failed, and those that wait for them."""
        lost = set(self.failed)
        if lost:
            for each in self.order:
                if any(before in lost for before in self.jobs[each].after):
                    lost.add(each)
        return lost

    def _pace(self, now: float) -> dict[str, float]:
        """Seconds per unit of size by kind; `rule:` and its name for other kinds of a rule."""
        known = {**self.earlier, **{kind: seconds / size for kind, (seconds, size) in self.spent.items() if size}}
        for each, job in self.running.items():
            left, planned = job.seconds_left(), self.jobs[each]
            if left is not None and planned.size and planned.kind not in known:
                known[planned.kind] = (now - job.since + left) / planned.size
        by_rule: dict[str, list[float]] = {}
        for kind, pace in known.items():
            by_rule.setdefault(kind.split()[0], []).append(pace)
        return known | {f"rule:{rule}": sum(paces) / len(paces) for rule, paces in by_rule.items()}

    def _job_left(self, id: int, pace: Mapping[str, float], now: float) -> float | None:
        job, running = self.jobs[id], self.running.get(id)
        if running and (left := running.seconds_left()) is not None:
            return max(0.0, left)
        per_unit = pace.get(job.kind, pace.get(f"rule:{job.rule}"))
        if per_unit is None and job.rule == "train_run" and job.size:
            return None
        whole = per_unit * job.size if per_unit is not None else FIRST_GUESS_S.get(job.rule, OTHER_GUESS_S)
        return max(0.0, whole - (now - running.since)) if running else whole

    # In words

    def training(self, id: int) -> str:
        """One that runs, with its epoch."""
        return f"{self.jobs[id].name.split('-')[0]} {self.running[id].step or 'starting'}"

    def _trainings_that_run(self) -> list[int]:
        return [each for each in self.running if self.jobs[each].rule == "train_run"]

    def counts(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{len(self.done)} of {len(self.jobs)} jobs{failed}"

    def times(self, now: float, left: float | None) -> str:
        ahead = "" if left is None else f", about {in_time(left)} left"
        return f"{in_time(now - self.start)}{ahead}"

    def line(self, now: float, left: float | None, width: int | None = None) -> str:
        """As much as fits into so many characters: jobs and times first, then training runs."""
        essential, running = [self.counts(), self.times(now, left)], self._trainings_that_run()
        most = len(running) if width is None else width // SHORTEST_TRAINING
        trainings = [self.training(each) for each in running[:most]]
        for shown in range(len(trainings), 0, -1):
            more = f", {len(running) - shown} more" if shown < len(running) else ""
            text = SEPARATOR.join([essential[0], ", ".join(trainings[:shown]) + more, essential[1]])
            if width is None or len(text) <= width:
                return text
        text = SEPARATOR.join(essential)
        return text if width is None or len(text) <= width else essential[0][: max(0, width)]


def _inputs_first(jobs: Mapping[int, PlannedJob]) -> list[int]:
    """The jobs, each after those that it waits for."""
    waiting = {each: len(job.after) for each, job in jobs.items()}
    followers: dict[int, list[int]] = {}
    for each, job in jobs.items():
        for before in job.after:
            followers.setdefault(before, []).append(each)
    found = [each for each, count in waiting.items() if not count]
    for each in found:  # it grows
        for follower in followers.get(each, []):
            waiting[follower] -= 1
            if not waiting[follower]:
                found.append(follower)
    return found


def in_time(seconds: float) -> str:
    """40 s, 9 min, 2 h 10 min, 3 d 4 h."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
