"""`python -m pipeline published`."""

import argparse

from pipeline.commands.options import add_site, open_scale

SUMMARY = "publish the headline results in results/published, or check or compare published ones"
DETAILS = (
    "Without an option, results/published/SCALE is written from the finished results of `snakemake headline --config "
    "scale=SCALE`; git keeps this folder, and README shows it. Weights are not needed, so results that were merged "
    "from several machines can be published."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scale",
        nargs="?",
        metavar="SCALE",
        help="name of a file in configs/scale, needed to publish (default with --check, --compare and --redraw: all "
        "published scales)",
    )
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument(
        "--check",
        action="store_true",
        help="compute tables and verdicts again from the published metrics, and compare them with the published ones",
    )
    doing.add_argument(
        "--compare", action="store_true", help="list numbers of this machine's results that differ from published ones"
    )
    doing.add_argument(
        "--redraw",
        action="store_true",
        help="write the texts and the picture again from the published metrics; numbers and verdicts stay",
    )
    doing.add_argument("--readme", action="store_true", help="only update the section Results of README")
    parser.add_argument("--partial", action="store_true", help="publish even if results of the headline are missing")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.core.errors import ConfigError
    from pipeline.publishing.readme import write_block

    if options.check:
        return _check(options.scale)
    if options.compare:
        _compare(options.scale)
    elif options.readme:
        print(write_block())
    elif options.redraw:
        _redraw(options.scale)
        print(write_block())
    elif options.scale:
        _publish(options.scale, options.partial)
        print(write_block())
    else:
        raise ConfigError("no scale given: name the one to publish, or use --check, --compare, --redraw or --readme")
    return 0


def _publish(scale: str, is_partial: bool) -> None:
    from pipeline.core.config import shown
    from pipeline.publishing.folder import publish
    from pipeline.publishing.ready import require_ready
    from pipeline.report.drawing import draw_single

    freshness = open_scale(scale)
    for line in require_ready(freshness, is_partial):
        print(line)
    report = draw_single(freshness, "headline")
    folder = publish(freshness.graph, freshness.results, report)
    for path in sorted(folder.iterdir()):
        print(f"{shown(path)}: {path.stat().st_size:,} bytes")


def _redraw(scale: str | None) -> None:
    from pipeline.core.config import shown
    from pipeline.publishing.folder import published_scales, redraw

    for name in [scale] if scale else published_scales():
        changed = ", ".join(shown(path) for path in redraw(name))
        print(f"results/published/{name}: {f'{changed} written again' if changed else 'nothing to write again'}")


def _compare(scale: str | None) -> None:
    from pipeline.publishing.compare import compare
    from pipeline.publishing.folder import published_scales

    for name in [scale] if scale else published_scales():
        print("\n".join(compare(open_scale(name).graph)))


def _check(scale: str | None) -> int:
    from pipeline.core.config import CONFIGS, names
    from pipeline.publishing.folder import changed_since, check, published_scales
    from pipeline.study.resolve.graph import load_graph

    scales = [scale] if scale else published_scales()
    found = {name: check(name) for name in scales}
    for name, lines in found.items():
        print(f"results/published/{name}: {_outcome(lines)}")
        for line in lines[:10]:
            print(f"- {line}")
        changed = changed_since(name, load_graph(name)) if name in names(CONFIGS / "scale") else ""
        if changed:
            print(f"- note: configs have changed {changed} since then; the numbers are of the stored ones")
    if not scales:
        print("nothing is published yet")
    return int(any(found.values()))


def _outcome(lines: list[str]) -> str:
    from pipeline.report.words import counted

    if not lines:
        return "tables and verdicts are those of the metrics"
    return f"{counted(len(lines), 'difference')} from what the metrics give" + (
        ", the first 10:" if len(lines) > 10 else ":"
    )
