"""The doctor on this machine: each check finds what is wrong, and says what to do about it."""

import gzip
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.cli import main
from pipeline.data.images.classified import DataConfig
from pipeline.data.kind import kind_of
from pipeline.data.store.prepare import prepare
from pipeline.doctor import data, machine
from pipeline.doctor.cluster import minutes, num_gres
from pipeline.doctor.examine import examine, summary
from pipeline.doctor.finding import Subject, failed, ok
from pipeline.freshness.outputs import run_file
from pipeline.plan.rough import RoughCosts
from pipeline.site import Site
from pipeline.study.resolve import graph as graphs
from pipeline.study.resolve.entries import CellEntry


@pytest.fixture
def graph(tmp_path, monkeypatch) -> graphs.Graph:
    """One run of scale demo and the table that shows it; nothing has run."""
    found = graphs.load_graph("demo")
    name = next(name for name, run in found.runs.items() if not run.init)
    key, table = next((key, table) for key, table in found.tables.items() if shown_in(table, name))
    row = shown_in(table, name)
    row.cells = {"top1": CellEntry(sources=[run_file(name)], metric="top1")}
    table.rows = {"one": row}
    found.runs, found.tables, found.claims, data = {name: found.runs[name]}, {key: table}, {}, found.runs[name].data
    found.data = {data: found.data[data]}
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return found


def shown_in(table, run):
    return next((row for row in table.rows.values() if run in row.run_names()), None)


def only(check, graph, **site):
    """The one finding of a check on a site with these facts."""
    (finding,) = check(Subject(graph, Site(**site), "mine.yaml"))
    return finding


@contextmanager
def server(status: int):
    """Something that answers HTTP on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://me:secret@127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.slow
def test_examine__on_this_machine__finds_nothing_wrong_and_leaves_nothing(graph):
    findings = [*examine(graph, Site(device="cpu"))]
    assert [str(finding) for finding in findings if finding.state == "failed"] == []
    names = ["packages", "device", "results", "data fashion_mnist", "weights", "lpips", "tracking", "space"]
    assert [finding.what for finding in findings] == names
    assert [*graph.results.folder.iterdir()] == []


def test_doctor__with_failures__exits_with_1_and_counts_them(graph, monkeypatch, capsys):
    monkeypatch.setattr("pipeline.study.resolve.graph.load_graph", lambda scale: graph)
    monkeypatch.setattr(
        "pipeline.doctor.examine.examine", lambda *_: iter([ok("a", "fine"), failed("b", "no", "do c")])
    )
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("\N{BALLOT X} b") and lines[2].strip() == "-> do c"
    assert lines[3] == "1 ok, 1 failed, 0 not applicable: fix what failed, then run this again"
    assert summary([ok("a", "fine")]).endswith("this site can run this scale")


def test_packages__another_version_or_none__are_named(graph, tmp_path, monkeypatch):
    lines = [
        "numpy==0.1 \\",
        "    --hash=sha256:0",
        "no-such==1 ; sys_platform == 'linux'",
        "other==1 ; os_name == 'nt'",
    ]
    (tmp_path / "requirements.lock").write_text("\n".join(lines))
    monkeypatch.setattr(machine, "CONFIGS", tmp_path / "configs")
    finding = only(machine.packages, graph)
    assert finding.state == "failed" and "numpy 2" in finding.text and finding.text.endswith("not ==0.1; no no-such")


def test_device__gpu_asked_for_and_not_there__is_a_failure(graph, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    finding = only(machine.device, graph, device="cuda")
    assert finding.state == "failed" and "mine.yaml" in finding.remedy


def test_device__gpus_that_torch_cannot_use__are_a_failure(graph, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipeline.launch.gpus._found_gpus", lambda: {"0": "GPU-aa", "1": "GPU-bb"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = only(machine.device, graph)
    assert finding.state == "failed" and finding.text == "GPUs 0, 1 for jobs, of which torch can use none"


@pytest.mark.slow
def test_device__cpu_for_a_small_scale__is_fine_and_names_the_scale(graph):
    finding = only(machine.device, graph, device="cpu")
    assert finding.state == "ok" and "training at scale demo takes at least 0." in finding.text


@pytest.mark.slow
def test_device__cpu_for_a_large_scale__is_a_failure_that_names_the_scale(graph, monkeypatch):
    monkeypatch.setattr("pipeline.doctor.finding.rough", lambda graph, names: RoughCosts(1.0, 1e12))
    finding = only(machine.device, graph.model_copy(update={"scale": "tiny"}), device="cpu")
    assert finding.state == "failed" and "training at scale tiny takes at least" in finding.text
    assert "GPU" in finding.remedy and "--scale tiny" in finding.remedy


@pytest.mark.slow
def test_examine__counts_no_operations(graph, monkeypatch):
    def count(*arguments):
        raise AssertionError("this takes a minute at scale tiny")

    monkeypatch.setattr("pipeline.plan.operations.count_operations", count)
    assert {finding.state for finding in examine(graph, Site(device="cpu"))} == {"ok", "not applicable"}


@pytest.mark.slow
def test_results_folder__that_cannot_be_made__is_a_failure(graph, tmp_path):
    (tmp_path / "results").write_text("a file is in the way")
    finding = only(machine.results_folder, graph)
    assert finding.state == "failed" and "cannot be written: Not a directory" in finding.text


def test_results_folder__without_locks__is_a_failure(graph, monkeypatch):
    monkeypatch.setattr("fcntl.flock", lambda file, kind: None)
    assert "has no locks" in only(machine.results_folder, graph).text


def test_space__less_than_the_runs_need__is_a_failure(graph, monkeypatch):
    monkeypatch.setattr("pipeline.doctor.finding.rough", lambda graph, names: RoughCosts(1e18, 1.0))
    graph.results.folder.mkdir(parents=True)
    finding = only(machine.space, graph)
    assert finding.state == "failed" and "about 1,000,000.0 TB needed" in finding.text


def test_space__results_folder_that_could_not_be_made__is_that_of_the_disk_where_it_would_be(graph):
    assert not graph.results.folder.exists()
    assert " free, about " in only(machine.space, graph).text


@pytest.mark.slow
def test_tracking__server_that_answers__is_fine(graph):
    with server(200) as uri:
        finding = only(machine.tracking, graph, tracking_uri=uri)
    assert finding.state == "ok" and "secret" not in finding.text


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, None])
def test_tracking__server_that_is_ill_or_gone__is_a_failure(graph, status):
    with server(status or 200) as uri:
        found = only(machine.tracking, graph, tracking_uri=uri) if status else None
    found = found or only(machine.tracking, graph, tracking_uri=uri)
    assert found.state == "failed" and "follow later" in found.remedy
    assert ("answers 500" if status else "no answer within 5 s") in found.text


def test_data__folder_not_there_or_without_images__says_what_belongs_there(graph, tmp_path):
    for folder, words in ((tmp_path / "nowhere", "nowhere not found"), (tmp_path, "t10k-images-idx3-ubyte")):
        finding = only(data.data_sets, graph, data={"fashion_mnist": folder})
        assert finding.state == "failed" and words in finding.text, finding
        assert "https://github.com/zalandoresearch/fashion-mnist" in finding.remedy and "mine.yaml" in finding.remedy


@pytest.mark.slow
def test_data__folder_with_other_images_than_were_verified__is_a_failure(graph, tmp_path):
    (run,) = graph.runs.values()
    cfg = DataConfig(**run.config["data"])
    manifest = graph.results.manifest(cfg.name)
    prepare(cfg, kind_of(cfg).default_folder(), manifest.parent, progress=False)
    finding = only(data.data_sets, graph)
    assert finding.state == "ok" and finding.text == f"5000 + 1000 images, verified: {manifest}"
    shutil.copytree(kind_of(cfg).default_folder(), tmp_path / "other")
    labels = tmp_path / "other/t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-2] + b"\x00\x09"))
    finding = only(data.data_sets, graph, data={"fashion_mnist": tmp_path / "other"})
    assert finding.state == "failed" and "val: found other pixels or labels than were verified" in finding.text
    assert str(tmp_path / "other") in finding.text and "pipeline/data/fashion_mnist" in finding.text
    assert "python -m pipeline prepare" in finding.remedy


def test_data__manifest_of_another_version__says_which_command_writes_it_again(graph):
    manifest = graph.results.manifest("fashion_mnist")
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"splits": {"train": {"count": 5000}}}')
    finding = only(data.data_sets, graph)
    assert finding.state == "failed" and "manifest.json: found" in finding.text
    assert finding.remedy == "run `python -m pipeline prepare --scale demo --data fashion_mnist`"


def test_data__set_that_the_site_does_not_know__says_where_to_put_it(graph):
    (content,) = graph.data.values()
    graph.data = {"cifar10": {**content, "name": "cifar10", "source": "cifar10"}}
    next(iter(graph.runs.values())).data = "cifar10"
    finding = only(data.data_sets, graph)
    assert finding.state == "failed" and "the site file names no `data_root`" in finding.text
    assert finding.remedy.startswith(
        "add `data: {cifar10: /path}` to mine.yaml; to get it: `python -m pipeline download"
    )


def test_data_root__is_listed_with_what_is_found_and_what_the_site_file_overrules(graph, tmp_path):
    assert [*data.data_root(Subject(graph, Site(), "mine.yaml"))] == []
    for name in ("cifar-10-batches-bin", "cifar-100-binary"):
        (tmp_path / "cifar" / name).mkdir(parents=True)
    site = {"data_root": tmp_path, "data": {"cifar10": tmp_path / "cifar", "cifar100": "/elsewhere"}}
    finding = only(data.data_root, graph, **site)
    assert finding.state == "ok" and finding.text.startswith(f"public sets in {tmp_path}: 2")
    assert f"cifar10 in {tmp_path}/cifar\n" in finding.text
    assert finding.text.endswith(f"cifar100 in {tmp_path}/cifar, not used: the site file names /elsewhere")


def test_data_root__that_is_not_there__is_a_failure(graph, tmp_path):
    finding = only(data.data_root, graph, data_root=tmp_path / "nowhere")
    assert finding.state == "failed" and "nowhere not found" in finding.text and "mine.yaml" in finding.remedy


def test_weights__missing_and_there(graph, tmp_path):
    (run,) = graph.runs.values()
    run.config["init"] = "file:deit.pth"
    assert str(tmp_path / "deit.pth") in only(data.weights, graph, weights=str(tmp_path)).text
    (tmp_path / "deit.pth").touch()
    assert only(data.weights, graph, weights=str(tmp_path)).state == "ok"


@pytest.mark.slow
def test_weights__of_a_run_that_no_table_shows__are_not_asked_for(graph):
    (run,) = graph.runs.values()
    graph.runs["other"] = run.model_copy(update={"config": {**run.config, "init": "file:deit.pth"}})
    graph.data["other"] = {**graph.data[run.data], "name": "other", "source": "cifar10"}
    assert only(data.weights, graph).state == "not applicable"
    assert only(data.data_sets, graph).state == "ok"


@pytest.mark.slow
def test_lpips__without_its_weights__is_not_a_failure(graph, tmp_path):
    for site, words in (({}, "names no file"), ({"lpips": tmp_path / "alexnet.pth"}, "alexnet.pth not found")):
        finding = only(data.lpips, graph, **site)
        assert (
            finding.state == "not applicable" and finding.text.startswith("weights missing") and words in finding.text
        )


def test_lpips__damaged_weights__are_a_failure_with_a_remedy(graph, tmp_path):
    (tmp_path / "alexnet.pth").write_bytes(b"<html>not found</html>")
    finding = only(data.lpips, graph, lpips="alexnet.pth", weights=str(tmp_path))
    assert finding.state == "failed" and "begins with b'<html>" in finding.text and "mine.yaml" in finding.remedy


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("gpu:2", "gpu", 2),
        ("gpu:a100:4(S:0-1),gpu:v100:2", "gpu", 6),
        ("gpu:a100:4(S:0-1),gpu:v100:2", "gpu:v100", 2),
        ("gpu:a100_80:4", "gpu:a100", 0),
        ("(null)", "gpu", 0),
    ],
)
def test_num_gres__as_scontrol_writes_it(text, kind, count):
    assert num_gres(text, kind) == count


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("UNLIMITED", float("inf")), ("01:30:00", 90), ("1-12:00:00", 2160), ("7-00:00:00", 10080), ("30:00", 30)],
)
def test_minutes__as_scontrol_writes_them(limit, expected):
    assert minutes(limit) == expected
