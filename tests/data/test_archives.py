"""Archives from outside are extracted as data and nothing else, also where Python has no data filter."""

import io
import tarfile

import pytest

from pipeline.data.store.archives import extract


@pytest.fixture(params=["with the filter", "without it"])
def python(request, monkeypatch):
    if request.param == "without it":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no data filter")


def write(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 4 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"data") if member.isfile() else None)
    return path


def link(name, kind, target):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_extract__plain_files__are_there(python, tmp_path):
    extract(write(tmp_path / "a.tar.gz", tarfile.TarInfo("folder/file")), tmp_path / "out")
    assert (tmp_path / "out/folder/file").read_bytes() == b"data"


def test_extract__archive_of_a_folder_by_the_name_of_dot__is_extracted(python, tmp_path):
    """As Speech Commands is packed."""
    dot = tarfile.TarInfo("./")
    dot.type = tarfile.DIRTYPE
    extract(write(tmp_path / "a.tar.gz", dot, tarfile.TarInfo("./yes/a.wav")), tmp_path / "out")
    assert (tmp_path / "out/yes/a.wav").read_bytes() == b"data"


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../escaped"),
        tarfile.TarInfo("folder/../../escaped"),
        link("inner", tarfile.SYMTYPE, "../escaped"),
        link("inner", tarfile.SYMTYPE, "/etc/passwd"),
        link("device", tarfile.CHRTYPE, ""),
    ],
    ids=["parent", "hidden parent", "link out", "link to the system", "device"],
)
def test_extract__unsafe_member__is_refused(python, tmp_path, member):
    archive = write(tmp_path / "a.tar.gz", member)
    (tmp_path / "in").mkdir()
    with pytest.raises(tarfile.TarError):
        extract(archive, tmp_path / "in" / "out")
    assert not list(tmp_path.rglob("escaped")) and not (tmp_path / "in/out/device").exists()
