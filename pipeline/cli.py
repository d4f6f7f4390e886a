"""Runs `python -m pipeline VERB`, which rules and people call. One file of commands/ is one verb.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import os
import sys
from importlib import import_module

from pipeline.core.errors import PatchworkError, storage_problem
from pipeline.core.logs import start_logging

ABOUT = """\
Patchwork, one step at a time. `snakemake TARGET` calls these steps in the right order; a TARGET is a study (mjp), a
table or figure of it (mjp_table4, mp3_figure3), or `all`."""

# The verbs in the order in which people need them; each is a file of commands/.
VERBS = {
    "before a run": ["describe", "download", "schema", "check", "doctor", "plan"],
    "a run or a study with other values": ["sweep"],
    "during a run": ["status"],
    "after a run": [
        "summary",
        "verify",
        "merge",
        "published",
        "explain",
        "frame",
        "noise",
        "attack",
        "export",
        "clean",
    ],
    "a model": ["key", "lock", "unlock", "infer"],
    "the steps, in this order; the rules call them": [
        "prepare",
        "train",
        "evaluate",
        "table",
        "claims",
        "report",
        "track",
    ],
}

EXAMPLES = """\
examples
  python -m pipeline check                          every mistake in configs/, at every scale
  python -m pipeline download tiny_imagenet --to ~/data   a published data set; without a name, the list of all
  python -m pipeline plan --scale tiny mjp_table4   the cost of one table on Tiny ImageNet
  python -m pipeline status                         progress of every scale
  python -m pipeline summary mjp_table4             one table, as far as it is finished
  python -m pipeline published --check              draw the results in git again from their metrics, and compare
  python -m pipeline explain mjp.t1.deit-s:top1     where this number comes from
  python -m pipeline evaluate --model resnet50      any timm model through the robustness evaluations
  python -m pipeline attack --model RUN --image cat.jpg --attack april   one image, recovered from a gradient
  python -m pipeline VERB --help                    the options of one verb

exit codes: 0 done; 1 failed, with a message; 75 stopped, and the same command continues"""


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
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


def build_parser() -> argparse.ArgumentParser:
    guide: list[str] = []
    parser = argparse.ArgumentParser(
        prog="python -m pipeline", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", help="one of these:")
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
