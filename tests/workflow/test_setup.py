"""What the bootstrap promises: hashed versions, no addresses, no needless work, clear refusals."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "workflow" / "setup"
# Spelled in two halves, so that this file passes its own search.
INDEX_ADDRESSES = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "download.pytorch.org" + "/whl",
    "--index" + "-url",
    "--find" + "-links",
)
SLURM_PROGRAMS = (
    *("munged", "munge", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"),
    *("mariadb-install-db", "slurmdbd", "mariadbd"),
)


@pytest.fixture(scope="module")
def lock() -> dict[str, str]:
    """Package name -> its whole entry (version, markers and hashes)."""
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())
    return {normal(re.match(r"[\w.-]+", entry)[0]): entry for entry in entries}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that make reads, with an installation that was finished after all of them were written."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(SETUP, tmp_path / "workflow" / "setup")
    (tmp_path / ".venv").mkdir()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        os.utime(path, (1000, 1000))
    stamp = tmp_path / ".venv" / ".installed"
    stamp.touch()
    os.utime(stamp, (2000, 2000))
    return tmp_path


def test_lock__every_package__has_hashes(lock):
    bare = [name for name, entry in lock.items() if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)]
    assert len(lock) > 100
    assert bare == []


def test_lock__every_package__has_one_exact_version(lock):
    assert [name for name, entry in lock.items() if not re.match(r"\S+==[\w.+!]+( |$)", entry)] == []


def test_lock__text__has_neither_addresses_nor_options():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if "://" in line or line.startswith("-")] == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_lock__core_packages__are_marked_for_both_architectures(lock, machine):
    core = ["torch", "torchvision", "timm", "numpy", "snakemake", "mlflow", "dvc", "uv"]
    assert [name for name in core if f"platform_machine == '{machine}'" not in lock[name]] == []


def test_pyproject__every_dependency__is_in_the_lock(lock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    wanted = [each for each in project["dependencies"] + extras if not each.startswith(f"{project['name']}[")]
    assert [name for name in wanted if normal(re.match(r"[\w.-]+", name)[0]) not in lock] == []


def test_pyproject__build_backend__is_in_the_lock(lock):
    """The project is installed without build isolation, so the lock must bring its build backend."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [name for name in requires if normal(re.match(r"[\w.-]+", name)[0]) not in lock] == []


def test_tracked_files__name_no_package_index():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list of tracked files")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    texts = {path: path.read_bytes() for path in paths if path.is_file()}
    assert len(texts) > 5
    assert [str(p) for p, text in texts.items() if any(a.encode() in text for a in INDEX_ADDRESSES)] == []


def test_make__nothing_changed__does_nothing(checkout):
    assert make(checkout, "--question", ".venv/.installed").returncode == 0


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", "workflow/setup/venv.sh"])
def test_make__when_an_ingredient_changed__installs_again(checkout, name):
    os.utime(checkout / name, (3000, 3000))
    assert make(checkout, "--question", ".venv/.installed").returncode == 1


@pytest.mark.parametrize("way", [Path.rename, shutil.copytree])
def test_make__project_moved_or_copied__installs_again(checkout, tmp_path_factory, way):
    stamp = checkout / ".venv/.installed"
    stamp.write_text(f"{checkout}/.venv\n")
    assert make(checkout, "--question", ".venv/.installed").returncode == 0
    other = tmp_path_factory.mktemp("other") / "pw 2"
    way(checkout, other)
    assert make(other, "--question", ".venv/.installed").returncode == 1


def test_make__venv_is_a_link_to_that_of_another_checkout__installs_nothing(checkout, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / ".venv"
    (checkout / ".venv").rename(other)
    (other / ".installed").write_text(f"{other}\n")
    (checkout / ".venv").symlink_to(other)
    assert make(checkout, "--question", ".venv/.installed").returncode == 0


def test_make__without_a_target__explains_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()) - {"help"}
    shown = make(ROOT).stdout
    assert targets == set(re.findall(r"^  make (\w+) ", shown, re.MULTILINE))


def test_make_clean__leaves_results_unchanged(checkout):
    kept = checkout / "results" / "demo" / "__pycache__" / "table.csv"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert make(checkout, "clean").returncode == 0
    assert kept.exists()
    assert not (checkout / ".venv").exists()


def test_venv__with_an_old_python_only__says_found_expected_and_what_to_do(checkout, tmp_path):
    old = fake_path(tmp_path, {"python3": 'case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac'})
    result = run_setup(checkout, "venv.sh", old)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "found Python 3.9.2, expected Python 3.11 or newer. Install one" in result.stderr


def test_venv__without_any_python__says_so(checkout, tmp_path):
    result = run_setup(checkout, "venv.sh", fake_path(tmp_path, {}))
    assert result.returncode == 1
    assert "found no python3, expected Python 3.11 or newer" in result.stderr


def test_venv__with_an_old_python3_next_to_a_newer_one__takes_the_newer(checkout, tmp_path):
    newer = 'case "$1" in --version) echo Python 3.12.1 ;; -c) exit 0 ;; *) exit 1 ;; esac'
    result = run_setup(checkout, "venv.sh", fake_path(tmp_path, {"python3": "exit 1", "python3.12": newer}))
    assert result.stdout == "setup: creating .venv with Python 3.12.1\n"
    assert "found no usable venv module in" in result.stderr


def test_venv__with_a_python_built_without_optimisation__takes_an_optimised_one_of_the_same_version(
    checkout, tmp_path, tmp_path_factory
):
    slow = """case "$1$2" in
        --version) echo Python 3.12.1, slow ;;
        *CONFIG_ARGS*) exit 1 ;;
        *python%d.%d*) echo python3.12 ;;
        -c*) exit 0 ;;
        *) exit 1 ;;
    esac"""
    fast = 'case "$1" in --version) echo Python 3.12.9, fast ;; -c) exit 0 ;; *) exit 1 ;; esac'
    system = tmp_path_factory.mktemp("usr") / "bin"
    system.mkdir()
    path = f"{fake_path(tmp_path, {'python3': slow})}:{system}"
    assert run_setup(checkout, "venv.sh", path).stdout == "setup: creating .venv with Python 3.12.1, slow\n"
    script(system / "python3.11", fast)
    assert run_setup(checkout, "venv.sh", path).stdout == "setup: creating .venv with Python 3.12.1, slow\n"
    script(system / "python3.12", fast)
    assert run_setup(checkout, "venv.sh", path).stdout == "setup: creating .venv with Python 3.12.9, fast\n"


def test_venv__on_another_system__names_the_ones_it_serves(checkout, tmp_path):
    result = run_setup(checkout, "venv.sh", fake_path(tmp_path, {"uname": "echo Darwin"}))
    assert result.returncode == 1
    assert "found Darwin on Darwin, expected Linux on x86_64 or aarch64" in result.stderr


@pytest.mark.slow
def test_make__installs__and_compiles_what_processes_import(checkout, lock):
    fake_uv(checkout, lock)
    libraries = checkout / ".venv/lib/python3/site-packages"
    used = [checkout / "pipeline/cli.py", libraries / "torch/nn.py", libraries / "transformers/models/bert/model.py"]
    unused = [libraries / "torch/tests/nn.py", libraries / "transformers/models/other/model.py"]
    for path in (*used, *unused):
        path.parent.mkdir(parents=True)
        path.touch()
    os.utime(checkout / "requirements.lock", (3000, 3000))
    result = make(checkout, ".venv/.installed")
    assert result.returncode == 0, result.stderr
    synced = [line for line in (checkout / "uv.log").read_text().splitlines() if line.startswith("pip sync")]
    assert len(synced) == 1
    assert (checkout / ".venv/.installed").read_text() == f"{checkout}/.venv\n"
    assert [path for path in (*used, *unused) if list((path.parent / "__pycache__").glob("*.pyc"))] == used


@pytest.mark.slow
def test_venv__with_the_locked_uv_already_there__changes_nothing(checkout, tmp_path, lock):
    fake_uv(checkout, lock)
    result = run_setup(checkout, "venv.sh", fake_path(tmp_path, {"python3": f'exec {sys.executable} "$@"'}))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_venv__moved_from_elsewhere__is_made_anew(checkout, tmp_path, lock):
    """uv would find every package installed, and leave scripts that name a Python which is no longer there."""
    fake_uv(checkout, lock)
    (checkout / ".venv/.installed").write_text("/elsewhere/.venv\n")
    asked = tmp_path / "asked"
    python = f'case "$1" in --version) echo Python 3.12.1 ;; -c) exit 0 ;; *) echo "$@" > {asked}; exit 1 ;; esac'
    result = run_setup(checkout, "venv.sh", fake_path(tmp_path, {"python3": python}))
    assert result.stdout == "setup: .venv was installed as /elsewhere/.venv\nsetup: creating .venv with Python 3.12.1\n"
    assert asked.read_text() == "-m venv --without-pip --clear .venv\n"


def test_chromium__already_there__is_silent(checkout, tmp_path):
    result = run_setup(checkout, "chromium.sh", fake_path(tmp_path, {"chromium-headless-shell": "exit 0"}))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_chromium__for_an_ordinary_user__says_that_tests_skip_and_why(checkout, tmp_path):
    result = run_setup(checkout, "chromium.sh", fake_path(tmp_path, {"id": "echo 1000"}))
    assert result.returncode == 0
    assert result.stdout.startswith("chromium: not found: chromium")
    assert result.stdout.endswith("; the browser tests will skip\n")


def test_slurm__already_there__is_silent(checkout, tmp_path):
    result = run_setup(checkout, "slurm.sh", fake_path(tmp_path, dict.fromkeys(SLURM_PROGRAMS, "exit 0")))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_slurm__partly_there_for_an_ordinary_user__names_the_packages_and_says_that_tests_skip(checkout, tmp_path):
    some = dict.fromkeys(SLURM_PROGRAMS[:-2], "exit 0")
    result = run_setup(checkout, "slurm.sh", fake_path(tmp_path, {**some, "id": "echo 1000"}))
    assert result.returncode == 0
    assert result.stdout.startswith("slurm: not found: slurmdbd mariadb-server; ")
    assert result.stdout.endswith("; the cluster tests will skip\n")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def make(folder: Path, *args: str) -> subprocess.CompletedProcess:
    # A make above this one would otherwise hand down its own flags.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *args], cwd=folder, env=env, capture_output=True, text=True)


def run_setup(folder: Path, name: str, path: Path | str) -> subprocess.CompletedProcess:
    command = ["/bin/sh", f"workflow/setup/{name}"]
    return subprocess.run(command, cwd=folder, env={"PATH": str(path)}, capture_output=True, text=True)


def fake_path(folder: Path, scripts: dict[str, str]) -> Path:
    """A PATH of basic tools and these scripts, without the Python, Chromium and apt-get of this machine."""
    bin_ = folder / "fake_bin"
    bin_.mkdir()
    for name in ("dirname", "uname", "grep", "sed", "cut", "cat", "id", "mktemp", "mkdir", "rm"):
        (bin_ / name).symlink_to(shutil.which(name))
    for name, body in scripts.items():
        (bin_ / name).unlink(missing_ok=True)
        script(bin_ / name, body)
    return bin_


def fake_uv(checkout: Path, lock: dict[str, str]) -> None:
    """This Python and the locked uv, which writes down what it is told to do."""
    version = re.match(r"uv==(\S+)", lock["uv"])[1]
    bin_ = checkout / ".venv" / "bin"
    bin_.mkdir()
    script(bin_ / "python", f'exec {sys.executable} "$@"')
    script(bin_ / "uv", f'echo uv {version}; echo "$@" >> {checkout}/uv.log')


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
