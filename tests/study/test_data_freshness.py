"""What must be remade when a data set has changed, or a set that is made from another one."""

import json

import pytest
from result_files import SITE, finish

from pipeline.audit.verify import problems_of
from pipeline.core.files import Digests
from pipeline.core.registry import KINDS
from pipeline.core.source import PACKAGE, Definition, code_behind, digest_behind
from pipeline.data.store.manifest import SplitSummary, read_manifest, write_manifest
from pipeline.data.store.stamp import Stamp
from pipeline.freshness.outputs import data_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.study.resolve.graph import load_graph

SHOWN = table_file("mjp.t1", "all")


@pytest.fixture
def graph(finished_table):
    return finished_table


def now(graph) -> Freshness:
    return Freshness(graph, SITE)


@pytest.mark.slow
def test_data__in_a_folder_that_changed_in_place__is_stale_and_names_the_difference(project, tmp_path):
    from PIL import Image

    from pipeline.data.store.prepare import prepare
    from pipeline.site import Site
    from pipeline.study.resolve.graph_configs import data_of

    folder = tmp_path / "photos"
    for split, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(("cats", "dogs")):
            for index in range(count):
                path = folder / split / name / f"{split}{name}{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (100 * number + index, 0, 0)).save(path)
    graph = load_graph("demo")
    config = {**graph.data["fashion_mnist"], "name": "photos", "source": "folder"}
    graph.data["photos"] = config | {"num_classes": 2, "num_train": 6, "num_val": 4}
    site = Site(data={"photos": folder})
    prepare(data_of(graph, "photos"), folder, graph.results.manifest("photos").parent, progress=False)
    assert not Freshness(graph, site).why(data_file("photos"))
    kept = tmp_path / "digests.json"
    digests = Digests(kept)
    assert not Freshness(graph, site, digests).why(data_file("photos"))
    digests.keep()
    assert json.loads(kept.read_text()).keys() == {"data photos", "files of data photos"}
    path = folder / "train/cats/traincats1.png"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    assert "another content than was verified" in Freshness(graph, site, Digests(kept)).why(data_file("photos"))
    path.write_bytes(content)
    assert not Freshness(graph, site, Digests(kept)).why(data_file("photos"))
    (folder / "train/nowhere").symlink_to(folder / "none")  # is no reason to fail
    Freshness(graph, site).why(data_file("photos"))
    (folder / "train/nowhere").unlink()
    (folder / "train/cats").rename(folder / "train/x")
    (folder / "train/dogs").rename(folder / "train/cats")
    (folder / "train/x").rename(folder / "train/dogs")
    why = Freshness(graph, site).why(data_file("photos"))
    assert why.startswith("photos does not hold what was verified: train: ")
    question = "is it the folder that is meant? If not, correct `data: photos:` in configs/site/local.yaml first"
    assert why.endswith(question)
    problem = next(str(each) for each in problems_of(Freshness(graph, site)) if "data/photos" in each.file)
    assert problem.index(question) < problem.index("makes it again")
    graph.data["photos"]["num_train"] = 5
    assert "num_train 6, expected 5" in Freshness(graph, site).why(data_file("photos"))


def test_data__prepared_with_other_counts_than_the_config_says__is_stale(graph):
    path = graph.results.manifest("fashion_mnist")
    found = SplitSummary(count=151, bytes=1, fingerprint="", stamp=Stamp(listing="", sample=()))
    write_manifest(path, read_manifest(path).model_copy(update={"splits": {"val": found}}))
    why = now(graph).why(data_file("fashion_mnist"))
    assert why == "prepared with 151 val images, expected 5000 train and 1000 val images of 10 classes"


MADE = "fashion_mnist_c-fog"


@pytest.fixture
def made_set(graph):
    """The manifest of a set that is made here, with what it was made with."""

    def write(digests: dict) -> str:
        finish(graph, [data_file(MADE)])
        path = graph.results.manifest(MADE)
        write_manifest(path, read_manifest(path).model_copy(update={"source_digests": digests}))
        return data_file(MADE)

    return write


@pytest.mark.slow
def test_made_set__the_code_that_makes_it_changed__is_stale(graph, made_set):
    maker = "data/derived/corrupting.py"
    assert now(graph).why(made_set({maker: digest_behind(PACKAGE / maker)})) == ""
    assert now(graph).why(made_set({maker: "other"})).startswith(f"made with {maker} other, which is ")


@pytest.mark.parametrize("split", ["val", "train"])
def test_made_set__other_samples_in_the_set_it_is_made_from__is_stale(graph, made_set, split):
    source = "fashion_mnist" if split == "val" else "fashion_mnist/train"
    file, path = made_set({source: "before"}), graph.results.manifest("fashion_mnist")
    counts = {"train": 5000, "val": 1000}
    splits = {
        name: SplitSummary(count=count, bytes=1, fingerprint=f"now {name}", stamp=Stamp(listing="", sample=()))
        for name, count in counts.items()
    }
    write_manifest(path, read_manifest(path).model_copy(update={"splits": splits}))
    assert now(graph).why(file) == f"made with {source} before, which is now {split} now"


def test_made_set__folder_deleted_where_it_was_made__is_stale_and_pulled_results_are_not(graph, made_set):
    maker = "data/derived/corrupting.py"
    file = made_set({maker: digest_behind(PACKAGE / maker)})
    assert now(graph).why(file) == ""
    graph.results.data_lock(MADE).touch()  # left by `prepare`
    assert now(graph).why(file) == "/nowhere not found"


@pytest.mark.parametrize("kind", KINDS.names())
def test_made_set__of_any_kind__has_a_maker_whose_version_is_part_of_its_code(kind):
    found = KINDS.get(kind)
    assert bool(found.maker) == ("made_from" in found.Config.model_fields)
    if found.maker:
        assert Definition(PACKAGE / found.maker, "VERSION") in code_behind(PACKAGE / found.maker)
