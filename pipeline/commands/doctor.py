"""`python -m pipeline doctor`."""

import argparse

from pipeline.commands.options import add_scale, add_site

SUMMARY = "check whether this machine or cluster can run a scale"
DETAILS = (
    "It looks at packages, device, data, space and tracking, and on a cluster at commands, queue, partitions and "
    "a test job. Each failed check comes with a remedy."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.doctor.examine import examine, summary
    from pipeline.site import load_site
    from pipeline.study.resolve.graph import load_graph

    findings = []
    for finding in examine(load_graph(options.scale), load_site()):
        print(finding, flush=True)
        findings.append(finding)
    print(summary(findings))
    return int(any(finding.state == "failed" for finding in findings))
