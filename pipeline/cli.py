"""Runs `python -m pipeline VERB`, which rules and people call. One file of commands/ is one verb.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import difflib
import os
import sys
from importlib import import_module

from pipeline.core.errors import PatchworkError, storage_problem
from pipeline.core.logs import start_logging

ABOUT = """\
Patchwork's commands, for checking, planning, reading results and single steps. `snakemake TARGET` runs all steps of a
TARGET in the right order. TARGET is a study (mjp), a table or figure of it (mjp_table4, mp3_figure3), or `all`."""

# The verbs in the order in which people need them; each is a file of commands/.
VERBS = {
    "before a run": ["describe", "download", "schema", "check", "doctor", "plan"],
    "to try other values": ["sweep"],
    "during a run": ["status"],
    "after a run": [
        "summary",
        "verify",
        "merge",
        "published",
        "explain",
        "frame",
        "noise",
        "clean",
    ],
    "on a finished run, or on a model of your own without any run": ["evaluate", "attack", "export"],
    "to lock a model with a key": ["key", "lock", "unlock", "infer"],
    "the steps of the workflow besides evaluate; snakemake calls them": [
        "prepare",
        "train",
        "table",
        "claims",
        "report",
        "track",
    ],
}

EXAMPLES = """\
examples
  python -m pipeline check                          list the mistakes in configs/, at every scale
  python -m pipeline download tiny_imagenet --to ~/data   get a data set; without a name, list all
  python -m pipeline plan --scale tiny mjp_table4   estimate the cost of one table on Tiny ImageNet
  python -m pipeline status                         show the progress at every scale
  python -m pipeline summary mjp_table4             print one table, as far as it is finished
  python -m pipeline published --check              fill the published tables again from their metrics, and compare
  python -m pipeline explain mjp.t1.deit-s:top1     trace this number
  python -m pipeline evaluate --model resnet50      run the robustness evaluations on any timm model
  python -m pipeline attack --model RUN --image cat.jpg --attack april   recover an image from its gradient
  python -m pipeline VERB --help                    explain the options of one verb

exit codes: 0 done; 1 failed, with a message; 2 mistyped command; 75 interrupted: run the same command to continue"""


def main(arguments: list[str] | None = None) -> int:
    typed = sys.argv[1:] if arguments is None else arguments
    if problem := _verb_problem(typed):
        print(problem, file=sys.stderr)
        return 2  # as argparse does
    options = build_parser().parse_args(typed)
    start_logging()
    if options.site:
        os.environ["PATCHWORK_SITE"] = options.site
    try:
        return options.command.run(options) or 0
    except PatchworkError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not (problem := storage_problem(error)):
            raise
        print(problem, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pipeline"):
            raise
        print(
            f"{sys.executable} has no package {error.name!r}, expected those of requirements.lock; "
            "use the project's own Python: `. .venv/bin/activate` (`make demo` or `make test` installs it)",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 75


def _verb_problem(typed: list[str]) -> str:
    """The message for a mistyped verb, with the nearest one; empty for a verb or an option."""
    verbs = [name for names in VERBS.values() for name in names]
    if not typed or typed[0].startswith("-") or typed[0] in verbs:
        return ""
    close = difflib.get_close_matches(typed[0], verbs, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"no verb {typed[0]!r}; {hint}`python -m pipeline --help` lists all verbs"


def build_parser() -> argparse.ArgumentParser:
    guide: list[str] = []
    parser = argparse.ArgumentParser(
        prog="python -m pipeline", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", help="one of the verbs below")
    for moment, names in VERBS.items():
        guide.append(moment)
        for name in names:
            command = import_module(f"pipeline.commands.{name}")
            summary = command.SUMMARY
            verb = verbs.add_parser(name, description=f"{summary[:1].upper()}{summary[1:]}. {command.DETAILS}")
            verb.set_defaults(command=command, scale=None, site=None)
            command.add_options(verb)
            guide.append(f"  {name:10} {summary}")
    parser.epilog = "\n".join([*guide, "", EXAMPLES])
    return parser
