"""A real MLflow server that is down for a whole run and then comes back, and its page in a real browser."""

import hashlib

import pytest
from following import FollowerProcess
from patience import PATIENCE_S, wait_until
from result_writers import begin, classify_of, draw_table, evaluate, finish, log_steps, points

from pipeline.core.files import held
from pipeline.tracking.store import KEY

pytestmark = pytest.mark.slow

NUM_STEPS = 1200


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def window(browser):
    """Its pages share a cache, and wait as long as a busy machine needs. MLflow's scripts are megabytes."""
    window = browser.new_context(viewport={"width": 1700, "height": 1000})
    window.set_default_timeout(1000 * PATIENCE_S)
    yield window
    window.close()


@pytest.fixture
def new_page(window):
    yield window.new_page
    for page in window.pages:
        page.close()


def first_chart(page):
    """The title of the first chart, once it shows lines."""
    card = page.get_by_test_id("experiment-view-compare-runs-card").first
    card.locator("path.js-line").first.wait_for()
    return card.locator("h4").text_content()


@pytest.fixture(scope="module")
def returned(copy, new_scale, server):
    """A run trained, evaluated and drawn while a follower found no server; the server came back before the end."""
    graph = new_scale("outage")
    name = next(iter(graph.tables["mjp.t4"].rows.values())).runs[""][0]
    with held(graph.results.folder / "workflow.lock", "a test"):
        follower = FollowerProcess(copy, graph, MLFLOW_TRACKING_URI=server.uri)
        folder = begin(graph, name)
        log_steps(folder, range(1, NUM_STEPS + 1))
        finish(folder, val_top1=71.5)
        evaluate(graph, name, top1=70.5)
        draw_table(graph, "mjp.t4")
        before = digests(folder.folder)
        wait_until(lambda: "did not accept the results" in follower.output())
        server.start()
        follower.terminate()
        follower.wait(timeout=PATIENCE_S)
    return {
        "graph": graph,
        "name": name,
        "log": follower.output(),
        "code": follower.returncode,
        "untouched": digests(folder.folder) == before,
        "points": points(server.folder / "mlflow.db", graph),
    }


def test_server__down_for_the_whole_run__everything_is_there_once_when_it_is_back(returned):
    found = [point for point in returned["points"] if point[:2] == (returned["name"], "curves/loss")]
    assert sorted(step for _, _, step in found) == list(range(1, NUM_STEPS + 1))
    assert len(set(returned["points"])) == len(returned["points"])
    assert (f"{returned['name']}/{classify_of(returned['graph'], returned['name'])}", "top1", 0) in returned["points"]
    assert returned["untouched"]


def test_server__down_while_followed__one_line_says_so_and_the_follower_ends_well(returned):
    assert returned["code"] == 0 and "Traceback" not in returned["log"]
    assert returned["log"].count("did not accept the results") == 1


def test_server__artifacts__go_through_it(returned, server):
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("patchwork-outage")
    tables = client.get_experiment_by_name("patchwork-outage-tables")
    assert experiment.artifact_location.startswith("mlflow-artifacts:")
    runs = {run.info.run_name: run for run in client.search_runs([tables.experiment_id])}
    files = {file.path for file in client.list_artifacts(runs["mjp.t4"].info.run_id)}
    assert files == {"mjp.t4.html", "mjp.t4.csv", "mjp.t4.md"}
    assert list(server.folder.rglob("curve.svg"))


def test_server__is_up_again__the_last_line_names_the_page_of_the_curves(returned, server):
    last = returned["log"].splitlines()[-1]
    assert f"open {server.uri}/#/experiments/" in last and "compareRunsMode=CHART" in last


@pytest.mark.browser
def test_ui__page_of_the_run__shows_its_name_metrics_and_first_of_all_its_curves(returned, server, new_page):
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("patchwork-outage").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`{KEY}` LIKE '{returned['name']}@%'")
    page = new_page()
    page.goto(f"{server.uri}/#/experiments/{experiment}/runs/{run.info.run_id}")
    for text in (returned["name"], "result/val_top1", "71.5", "optim.epochs", "mjp.t4"):
        page.get_by_text(text).first.wait_for()
    page.get_by_text("Model metrics").click()
    assert first_chart(page) == "loss"
    page.goto(f"{server.uri}/#/experiments/{experiment}/runs/{run.info.run_id}/artifacts/curve.svg")
    page.wait_for_function("[...document.images].some(image => image.height > 100 && image.width > 200)")


@pytest.mark.browser
def test_ui__experiment_opened_from_the_list__its_note_leads_to_the_curves_of_the_runs(returned, server, new_page):
    page = new_page()
    page.goto(f"{server.uri}/#/experiments")
    page.get_by_role("link", name="patchwork-outage", exact=True).click()
    link = page.locator("a", has_text="Training curves")  # not by its role: MLflow opens a dialog above it
    address = link.get_attribute("href")
    # In a page of its own: the first one may still be on its way to MLflow's overview, and go there after all.
    curves = new_page()
    curves.goto(f"{server.uri}/{address}")
    assert first_chart(curves) == "curves/loss"
