"""GPUs of one machine as a resource: which ones a site has, and locks that give every job its own.

A slot is a share of a GPU, of which the site has `runs_per_gpu`. Its lock is a file that all Snakemakes of this user on
this machine know. The system releases it when the last process that has it open ends, however it ends: a process that
goes on computing after its launcher was killed keeps its slot. On a cluster, SLURM does all of this.
"""

import fcntl
import functools
import logging
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import ValidationError

from pipeline.core.config import Strict
from pipeline.core.errors import ConfigError, LaunchError
from pipeline.core.files import LockFile, explained, is_held
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.site import Site

log = logging.getLogger(__name__)

# Neither TMPDIR nor XDG_RUNTIME_DIR: two shells of one user may differ in them, and would not see each other's locks.
LOCKS = Path("/tmp") / f"patchwork-gpus-{os.getuid()}"
DEVICES, DRIVER = Path("/dev"), Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"
INHERITED = "PATCHWORK_GPU_LOCK"  # descriptor of the lock that a launcher gives to one of its processes
LOOK_S = 0.5  # between two looks for a free slot
_held: list[IO | LockFile] = []


class Gpu(NamedTuple):
    """A GPU that may be used."""

    id: str  # its number in nvidia-smi, for people
    name: str  # for locks and CUDA: its UUID where that is known, since containers and CUDA may number otherwise


class Slot(NamedTuple):
    """A share of a GPU that is ours while its lock is open."""

    gpu: Gpu
    lock: LockFile


class Holder(Strict):
    """What a lock file says of the job that holds the slot."""

    gpu: str
    process: int
    log: Path  # of the job

    @property
    def job(self) -> str:
        return self.log.stem


def gpus_of(site: Site) -> list[Gpu]:
    """The GPUs that jobs of this site share; none where they compute on CPUs, or where SLURM hands GPUs out."""
    if site.slurm or site.device == "cpu":
        return []
    found, visible = _found_gpus(), _visible_gpus()
    if site.gpus is None and visible is None and not found and _computes_on_amd():
        raise ConfigError(
            f"found GPUs of AMD ({DEVICES / 'kfd'}), whose numbers are not known here: all jobs would start on the "
            "first; name them in the site file, such as `gpus: [0, 1]`, or set `device: cpu`"
        )
    ids = [*found] if visible is None else visible
    if site.gpus is not None:
        chosen = [*dict.fromkeys(map(str, site.gpus))]
        _check_exist(chosen, found)
        ids = chosen if visible is None else [each for each in chosen if each in visible]
        if visible and not ids:
            raise ConfigError(
                f"{VISIBLE}={os.environ[VISIBLE]} has none of the GPUs that the site names (gpus: {site.gpus}); "
                "change one of the two"
            )
    return [Gpu(each, found.get(each) or each) for each in ids]


def _computes_on_amd() -> bool:
    """Whether there are AMD GPUs and a torch built for them; many laptops have only the GPUs. torch is not imported."""
    torch = find_spec("torch")
    library = Path(torch.origin).parent / "lib" / "libtorch_hip.so" if torch and torch.origin else None
    return (DEVICES / "kfd").exists() and library is not None and library.exists()


def _check_exist(chosen: list[str], found: dict[str, str]) -> None:
    if found and (missing := [each for each in chosen if each not in found]):
        raise ConfigError(
            f"gpus of the site names {', '.join(missing)}, and nvidia-smi lists {', '.join(found)}; name some of "
            "these, or remove the key to use all"
        )


@functools.cache
def _found_gpus() -> dict[str, str]:
    """Number -> UUID of the NVIDIA GPUs of this machine. Neither torch nor CUDA is loaded for it."""
    said, problem = _ask_nvidia_smi()
    found = said or _read_driver()
    devices = sorted(each.name for each in DEVICES.glob("nvidia[0-9]*"))
    if devices and not found:  # under other names, two jobs could lock one card
        raise LaunchError(
            f"found {', '.join(devices)} in {DEVICES}, and neither nvidia-smi ({problem}) nor {DRIVER} says their "
            "UUIDs, expected from one of both; make nvidia-smi work, or set `device: cpu` in the site file"
        )
    return found


def _ask_nvidia_smi() -> tuple[dict[str, str], str]:
    """What it lists, and what is wrong where that is nothing."""
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:  # a container may lack the program and have the GPUs
        return {}, str(error)
    if result.returncode:
        return {}, f"exit code {result.returncode}: {(result.stdout or result.stderr).strip()}"
    lines = result.stdout.splitlines()
    return dict(line.split(", ") for line in lines if line.count(", ") == 1), "it lists none"


def _read_driver() -> dict[str, str]:
    """The same from files of the driver, of the GPUs that this container has; none where it does not know a UUID."""
    uuids = []
    for file in sorted(DRIVER.glob("*/information")):  # folders are PCI addresses, in the order of nvidia-smi
        lines = (line.partition(":") for line in file.read_text().splitlines())
        facts = {key: value.strip() for key, _, value in lines}
        if (DEVICES / f"nvidia{facts.get('Device Minor')}").exists():
            uuids.append(facts.get("GPU UUID", "?"))
    return {} if "?" in "".join(uuids) else {str(number): uuid for number, uuid in enumerate(uuids)}


def _visible_gpus() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES allows, by number where that is known; None: every GPU."""
    if VISIBLE not in os.environ:
        return None
    given = [entry.strip() for entry in os.environ[VISIBLE].split(",")]
    found = _found_gpus()
    named = [next((gpu for gpu, uuid in found.items() if entry and uuid.startswith(entry)), entry) for entry in given]
    return [*dict.fromkeys(takewhile(lambda entry: _is_there(entry, found), named))]  # CUDA stops there, too


def _is_there(entry: str, found: dict[str, str]) -> bool:
    """Where the GPUs are not known, any name may be one; parts of a GPU (MIG) are not listed."""
    return entry not in ("", "-1", "NoDevFiles") and (not found or entry in found or entry.startswith("MIG-"))


@contextmanager
def hold_gpus(site: Site, count: int, job_log: Path, stop: StopRequest | None = None) -> Iterator[list[Slot]]:
    """Take so many GPUs for this process and those it starts; yields a slot on each. With 0, it sees no GPU.

    To be entered before CUDA is initialised. On a site without GPUs nothing happens.
    """
    gpus = gpus_of(site)
    if not gpus:
        yield []
        return
    with ExitStack() as held:
        slots = _wait_for_slots(gpus, site.runs_per_gpu, count, job_log, stop) if count else []
        for slot in slots:
            _held.append(slot.lock)
            held.callback(_release, slot.lock)
        os.environ[VISIBLE] = ",".join(slot.gpu.name for slot in slots)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # where there are only numbers: as nvidia-smi has them
        if slots:
            log.info("on %s", in_words(slot.gpu.id for slot in slots))
            # Programs that clean /tmp spare a locked folder; a training run may last longer than they keep files.
            held.enter_context(_shared_lock(LOCKS))
        yield slots


def _release(lock: LockFile) -> None:
    _held.remove(lock)
    lock.close()


def keep_inherited_lock() -> None:
    """In a process of several that a launcher started: hold the slot that it was given until this process ends."""
    if descriptor := os.environ.pop(INHERITED, None):
        os.set_inheritable(int(descriptor), False)
        _held.append(os.fdopen(int(descriptor)))


def _let_go() -> None:
    """In a forked process, such as a loader worker: it uses no GPU, and may outlive the process that does."""
    while _held:
        _held.pop().close()


os.register_at_fork(after_in_child=_let_go)


def _wait_for_slots(
    gpus: list[Gpu], runs_per_gpu: int, count: int, job_log: Path, stop: StopRequest | None
) -> list[Slot]:
    """One job at a time may take from a GPU: a run of many GPUs is not passed over by jobs of one.

    Only that GPU is kept from others: who waits for some GPUs of the machine holds up nobody who may use another.
    """
    _make_folder()
    stop = stop or StopRequest()
    with ExitStack() as turns_end:
        turns = {gpu: turns_end.enter_context(closing(LockFile(LOCKS / f"{gpu.name}.turn"))) for gpu in gpus}

        def look() -> list[Slot]:
            ours = [gpu for gpu, turn in turns.items() if turn.take()]
            if len(ours) < count:  # two jobs that each kept some of the turns would wait for each other
                for gpu in ours:
                    turns[gpu].release()
                return []
            return _take_slots(ours, runs_per_gpu, count, job_log)

        def tell() -> None:
            users = [f"GPU {each.gpu} by {each.job}" for each in holders()]
            every = in_words(gpu.id for gpu in gpus)
            log.info("waiting for %d of %s; in use: %s", count, every, ", ".join(users) or "none")

        slots = stop.wait_for(look, LOOK_S, tell)
    if not slots:
        raise Requeue(f"{stop.why} while waiting for a GPU")
    return slots


def _make_folder() -> None:
    with explained(LOCKS):
        LOCKS.mkdir(mode=0o700, exist_ok=True)
    if LOCKS.is_symlink() or LOCKS.stat().st_uid != os.getuid():
        raise LaunchError(f"{LOCKS} belongs to another user, expected a folder of yours; ask for its removal")


def _take_slots(gpus: list[Gpu], runs_per_gpu: int, count: int, job_log: Path) -> list[Slot]:
    """A slot on each of `count` GPUs, those with the fewest jobs first; none where fewer are free."""
    # Locks of all sites count: one may allow more runs on a GPU than another.
    used = {gpu: sum(map(is_held, LOCKS.glob(f"{gpu.name}-*.lock"))) for gpu in gpus}
    taken: list[Slot] = []
    for gpu in sorted(gpus, key=lambda gpu: used[gpu]):
        if len(taken) < count and used[gpu] < runs_per_gpu and (slot := _take_slot(gpu, runs_per_gpu, job_log)):
            taken.append(slot)
    if len(taken) == count:
        return taken
    for slot in taken:
        slot.lock.close()
    return []


def _take_slot(gpu: Gpu, runs_per_gpu: int, job_log: Path) -> Slot | None:
    holder = Holder(gpu=gpu.id, process=os.getpid(), log=job_log.absolute()).model_dump_json()
    for share in range(runs_per_gpu):
        lock = LockFile(LOCKS / f"{gpu.name}-{share}.lock", holder)
        if lock.take():
            return Slot(gpu, lock)
        lock.close()
    return None


@contextmanager
def _shared_lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def holders() -> list[Holder]:
    """The jobs of this user that hold GPUs of this machine now."""
    found = []
    for path in sorted(LOCKS.glob("*.lock")):
        with suppress(OSError, ValidationError):  # it is being written
            if is_held(path):
                found.append(Holder.model_validate_json(path.read_bytes()))
    return found


def in_words(gpus: Iterable[str]) -> str:
    """GPU 3, or GPUs 0, 2."""
    names = sorted(gpus, key=lambda gpu: (len(gpu), gpu))
    return f"GPU{'s' * (len(names) > 1)} {', '.join(names)}"
