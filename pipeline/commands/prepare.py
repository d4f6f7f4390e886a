"""`python -m pipeline prepare`."""

import argparse

from pipeline.commands.options import add_scale, add_site
from pipeline.core.errors import ConfigError

SUMMARY = "verify a data set and write its manifest"
DETAILS = "Every sample is read and decoded once."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_site(parser)
    parser.add_argument("--data", required=True, help="name of a data set that a run of this scale uses")
    parser.add_argument(
        "--cache-only",
        action="store_true",
        help="only fill the folder that `cache` names in the site file, such as a node's local disk, with a set that "
        "is already verified",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.data.kind import kind_of, reference_run, source_set
    from pipeline.data.store.prepare import fill_cache, prepare
    from pipeline.launch.gpus import hold_gpus
    from pipeline.site import data_folder, load_site
    from pipeline.study.resolve.graph import load_graph
    from pipeline.study.resolve.graph_configs import as_runs_see, data_of

    graph, site = load_graph(options.scale), load_site()
    data, sources = data_of(graph, options.data), None
    folder, out, seen = data_folder(site, data), graph.results.manifest(data.name).parent, as_runs_see(graph, data.name)
    if options.cache_only:
        if not site.cache:
            raise ConfigError("--cache-only writes to the folder that `cache` names in the site file; found none")
        fill_cache(data, folder, out, site.cache, site.workers, seen=seen)
        print(f"{data.name}: the cache in {site.cache} is complete for scale {options.scale}")
        return
    if source_set(data):  # needs torch, which verifying a set does not
        from pipeline.study.resolve.graph_configs import sources_of

        sources = sources_of(graph, site)
    job_log = graph.results.log("prepare_data", data.name)
    with hold_gpus(site, int(reference_run(data) is not None), job_log):
        manifest = prepare(data, folder, out, site.workers, sources=sources, cache=site.cache, seen=seen)
    counts = " + ".join(str(split.count) for split in manifest.splits.values())
    print(f"{data.name}: {counts} {kind_of(data).unit} verified")
