"""The process that follows the results, as Snakemake starts it: killed, doubled, without a server, and to its end."""

import collections
import multiprocessing
import time

import pytest
from following import FollowerProcess
from patience import PATIENCE_S, wait_until
from result_writers import begin, finish, log_steps, points, statuses

from pipeline.core.files import held
from pipeline.engine.meters import MetricsFile
from workflow.follower import Follower

pytestmark = pytest.mark.slow

NUM_JOBS, NUM_STEPS = 16, 250
NOBODY = "http://127.0.0.1:9"


def write_slowly(path):
    """What a job does at 20 lines a second."""
    file = MetricsFile(path)
    for step in range(1, NUM_STEPS + 1):
        file.append(step=step, loss=1 / step, lr=0.1)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def scene(copy, new_scale, database):
    """16 jobs log at once; the follower is killed among its first points, and then there are two at a time."""
    graph = new_scale("scene")
    folders = [begin(graph, name) for name in list(graph.runs)[:NUM_JOBS]]
    fork = multiprocessing.get_context("fork")
    jobs = [fork.Process(target=write_slowly, args=(folder.metrics,)) for folder in folders]
    with held(graph.results.folder / "workflow.lock", "a test"):
        killed = FollowerProcess(copy, graph)
        for job in jobs:
            job.start()
        wait_until(lambda: points(database, graph))
        killed.kill()
        killed.wait()
        num_at_kill = len(points(database, graph))
        status_at_kill = set(statuses(database, graph).values())
        follower = FollowerProcess(copy, graph)
        wait_until(lambda: len(points(database, graph)) > num_at_kill)
        second = FollowerProcess(copy, graph)
        second.wait(timeout=PATIENCE_S)
        for job in jobs:
            job.join()
    follower.wait(timeout=PATIENCE_S)
    return {
        "points": points(database, graph),
        "num_at_kill": num_at_kill,
        "statuses": (status_at_kill, set(statuses(database, graph).values())),
        "names": [folder.name for folder in folders],
        "follower": (follower.returncode, follower.output()),
        "second": (second.returncode, second.output()),
    }


def test_follow__16_jobs_and_a_kill_in_the_middle__each_point_once(scene):
    wanted = {
        (name, key, step)
        for name in scene["names"]
        for key in ("curves/loss", "optimiser/lr")
        for step in range(1, NUM_STEPS + 1)
    }
    assert 0 < scene["num_at_kill"] < len(wanted)
    found = collections.Counter(scene["points"])
    assert found.keys() == wanted
    assert set(found.values()) == {1}


def test_follow__snakemake_is_gone__ends_after_a_last_pass(scene):
    code, output = scene["follower"]
    assert code == 0 and f"has everything; runs so far: {NUM_JOBS}" in output.splitlines()[-1]


def test_follow__runs_that_no_process_works_on__are_running_until_the_last_pass_and_then_killed(scene):
    assert scene["statuses"] == ({"RUNNING"}, {"KILLED"})


def test_follow__second_follower__says_so_in_one_line_and_ends_well(scene):
    code, output = scene["second"]
    assert code == 0 and len(output.splitlines()) == 1
    assert "another process mirrors scale scene into MLflow already" in output


def test_track__server_is_down__one_message_and_nothing_lost(copy, new_scale):
    graph = new_scale("alone")
    log_steps(begin(graph, next(iter(graph.runs))), range(1, 11))
    result = copy.run("python", "-m", "pipeline", "track", "--scale", graph.scale, MLFLOW_TRACKING_URI=NOBODY)
    assert result.returncode == 1
    assert "did not accept the results" in result.stderr and "nothing is lost" in result.stderr
    assert "Traceback" not in result.stderr


def test_hooks__snakemake_runs_a_job__its_scale_is_mirrored_when_it_ends_and_no_follower_remains(copy, demo, new_scale):
    folder = begin(demo, next(iter(demo.runs)))
    log_steps(folder, range(1, 11))
    finish(folder)
    target = "results/demo/data/fashion_mnist/manifest.json"
    log = copy.root / "results/demo/logs/track.log"
    log.unlink(missing_ok=True)
    assert copy.snakemake("-n", target).returncode == 0 and not log.exists()
    result = copy.snakemake(target, "-c1")
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    assert "has everything; runs so far: 1" in output and "has everything" in log.read_text()
    with held(demo.results.folder / "track.lock", "a test"):
        pass


def test_hook__workflow_over_before_the_follower_listens__mirrors_all_the_same(copy, new_scale, monkeypatch):
    graph = new_scale("hasty")
    log_steps(begin(graph, next(iter(graph.runs))), range(1, 11))
    monkeypatch.chdir(copy.root)
    monkeypatch.setenv("PYTHONPATH", str(copy.root))
    follower = Follower("hasty")
    follower.start()
    assert "has everything; runs so far: 1" in follower.stop()


def test_hooks__job_fails_and_server_is_down__the_workflow_says_both_and_what_to_do(copy, demo, new_scale):
    with copy.changed("configs/data/fashion_mnist.yaml", "num_train: 5000", "num_train: 5001"):
        env = {"MLFLOW_TRACKING_URI": NOBODY}
        result = copy.run("snakemake", "-c1", "results/demo/data/fashion_mnist/manifest.json", "-F", **env)
    output = result.stdout + result.stderr
    assert result.returncode == 1
    assert "Error in rule prepare_data" in output and "Traceback" not in output
    with held(demo.results.track_lock, "a test", patience_s=PATIENCE_S):  # on a busy machine it ends after Snakemake
        last = demo.results.track_log.read_text().splitlines()[-1]
    # A follower that had not begun to listen is followed by one pass, which has words of its own.
    assert NOBODY in last and "`python -m pipeline track" in last
    assert last in output or "still being brought up to date in the background" in output
