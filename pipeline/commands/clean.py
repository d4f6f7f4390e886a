"""`python -m pipeline clean`."""

import argparse

from pipeline.commands.options import add_scale, open_scale

SUMMARY = "delete abandoned runs and checkpoints that nothing needs"
DETAILS = (
    "It deletes runs that no config names any more, evaluations that no config names any more, and checkpoints of "
    "finished runs; weights and numbers of runs that a config names are kept. The command lists everything with its "
    "size, and asks before it deletes."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, None, "every scale with results")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("-n", "--dry-run", action="store_true", help="list the files, and delete nothing")


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.clean import delete, find_leftovers
    from pipeline.results import scales_with_results

    scales = [options.scale] if options.scale else scales_with_results()
    leftovers = find_leftovers(map(open_scale, scales))
    print(leftovers)
    if not leftovers.items or options.dry_run:
        return
    if options.yes or _agrees("delete all of this?"):
        delete(leftovers)
        print(f"deleted {len(leftovers.items)} items")
    else:
        print("nothing was deleted")


def _agrees(question: str) -> bool:
    """Ask a person; without one, the answer is no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
