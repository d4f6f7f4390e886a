"""Whether the results of a headline can be published: all are there, and none is stale."""

from pipeline.core.errors import DataError
from pipeline.freshness.remake import Freshness
from pipeline.publishing.selection import published_part, sources_of
from pipeline.report.words import counted
from pipeline.study.targets import command_for, report_target

SHOWN = 5


def require_ready(freshness: Freshness, is_partial: bool) -> list[str]:
    """Raise DataError for what is stale, or missing unless that is accepted; return what to tell about the missing."""
    sources = sources_of(published_part(freshness.graph))
    missing = [source for source in sources if not (freshness.results.folder / source).exists()]
    stale = {source: why for source in sources if source not in missing and (why := freshness.why_number(source))}
    scale = freshness.graph.scale
    command = command_for(report_target("headline", scale), scale)
    if stale:
        listed = "\n".join(f"- {source}: {why}" for source, why in [*stale.items()][:SHOWN])
        raise DataError(f"{counted(len(stale), 'result')} must be made again (`{command}`):\n{listed}")
    if missing and not is_partial:
        listed = "\n".join(f"- {source}" for source in missing[:SHOWN])
        raise DataError(
            f"{len(missing)} of {len(sources)} results of the headline are missing; run `{command}`, or accept it with "
            f"--partial:\n{listed}"
        )
    return [f"{len(missing)} of {len(sources)} results of the headline are missing, and published as such"] * bool(
        missing
    )
