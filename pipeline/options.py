"""The command line: every verb, every option, and what each of them means.

`build_parser` only reads the command line; `cli.py` holds what the verbs do.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

ABOUT = """\
Patchwork, one step at a time. `snakemake TARGET` calls these steps in the right order; a TARGET is a study (mjp), a
table or figure of it (mjp_table4, mp3_figure3), or `all`."""

GUIDE = """\
before a run   describe  make a data set of a folder of your own images
               check     are the configs valid, at every scale?
               doctor    can this machine or cluster run a scale?
               plan      what would run, how many hours, how much storage?
during a run   status    what is finished, running, waiting, failed?
after a run    summary   tables and claims on the terminal
               verify    are the results what was recorded?
               explain   where does a number come from, and has anything of it changed?
               frame     every metric as CSV, for a spreadsheet or a notebook
               noise     how much seeds differ, for the verdicts on single runs
               attack    what the gradient of a training step gives away of an image
               clean     delete what no config names any more, after asking
a model        key       make a key for a model, or recover the key of a locked one from its original
               lock      permute the weights of a model so that it works with its key alone
               unlock    give the weights back, byte for byte
               infer     ask a locked model, with its key, about an image or a text
the steps      prepare, train, evaluate, table, claims, report, track: in this order; the rules call them

examples
  python -m pipeline check                          every mistake in configs/, at every scale
  python -m pipeline plan --scale tiny mjp_table4   the cost of one table on Tiny ImageNet
  python -m pipeline status                         progress of every scale
  python -m pipeline summary mjp_table4             one table, as far as it is finished
  python -m pipeline explain mjp.t1.deit-s:top1     where this number comes from
  python -m pipeline evaluate --model resnet50      any timm model through the robustness evaluations
  python -m pipeline attack --model RUN --image cat.jpg --attack april   one image, recovered from a gradient
  python -m pipeline VERB --help                    the options of one verb

exit codes: 0 done; 1 failed, with a message; 75 stopped, and the same command continues"""

ROWS = "headline: the few rows that `snakemake demo` runs; all: every row (default: %(default)s)"
TARGETS = "studies (mjp), tables and figures (mjp_table4, mp3_figure3) or `all`"
LOCK = (
    "`lock vit.safetensors --key vit.key --out locked.safetensors`: safetensors in and out, tensor by tensor. A model "
    "in several files is named by its *.safetensors.index.json and written into a folder. It says how many keys there "
    "are and what a lock does not protect against."
)

Verbs = Mapping[str, Callable[[argparse.Namespace, list[str]], int | None]]


def build_parser(verbs: Verbs) -> argparse.ArgumentParser:
    """The parser; `verbs` has the function of each verb."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description=ABOUT,
        epilog=GUIDE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
        verb = found.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}. {more}".strip())
        verb.set_defaults(verb=verbs[name], scale=None, site=None)
        return verb

    _add_questions(add)
    _add_describe(add)
    _add_results(add)
    _add_attack(add)
    _add_locks(add)
    _add_steps(add)
    return parser


def _add_questions(add: Callable[..., argparse.ArgumentParser]) -> None:
    """What people ask before a run."""
    check = add(
        "check",
        "read and validate every config",
        "All mistakes at all scales are reported at once, with file and key. With --scale, one scale is read and its "
        "runs are listed.",
    )
    check.add_argument("--scale", help="read and list this scale only, a file of configs/scale (default: read all)")
    check.add_argument(
        "--expanded",
        nargs="?",
        const="",
        metavar="STUDY",
        help="print a study file with every short form written out (`like`, `over`, ...); without a name, all of them",
    )
    _site(check)
    doctor = add(
        "doctor",
        "check that this site can run a scale",
        "It looks at packages, device, data, space and tracking, and on a cluster at commands, queue, partitions and a "
        "test job. Each failed check comes with a remedy.",
    )
    _scale_and_site(doctor)
    plan = add(
        "plan",
        "say what would run and what it would cost",
        "It counts jobs, hours of training and storage for what is not finished yet.",
    )
    _scale_and_site(plan)
    plan.add_argument("targets", nargs="*", metavar="TARGET", help=f"{TARGETS}, or names of runs (default: all)")


def _add_describe(add: Callable[..., argparse.ArgumentParser]) -> None:
    """How people bring their own images."""
    describe = add(
        "describe",
        "write the config of a data set from a folder of your own images",
        "It decodes every image, counts, works out mean and standard deviation, and writes configs/data/NAME.yaml.",
    )
    describe.add_argument(
        "folder",
        type=Path,
        help="of class folders (train/<class>/ and val/<class>/, or <class>/ alone), or in the format of COCO, ADE20K "
        "or Speech Commands",
    )
    describe.add_argument("--name", required=True, help="name of the data set, and of its config")
    describe.add_argument("--image-size", type=int, help="side at which a model sees the images, in pixels")
    describe.add_argument("--channels", type=int, help="1: grey, 3: colour (default: as the images are)")
    describe.add_argument("--val-share", type=float, help="share of each class that becomes val (default: 0.1)")
    describe.add_argument("--force", action="store_true", help="overwrite an existing config of this name")
    _site(describe)


def _add_results(add: Callable[..., argparse.ArgumentParser]) -> None:
    """What people ask during and after a run."""
    status = add(
        "status",
        "say what is finished, running, waiting and failed",
        "It only reads files, so it may be called at any time, also while Snakemake works.",
    )
    status.add_argument("--scale", help="this scale only, a file of configs/scale (default: every scale with results)")
    summary = add(
        "summary",
        "print tables and claims",
        "Whatever is finished is shown; the papers' numbers are in brackets.",
    )
    _scale(summary)
    summary.add_argument("targets", nargs="*", metavar="TARGET", help=f"{TARGETS} (default: --rows of every study)")
    summary.add_argument("--rows", choices=["headline", "all"], default="headline", help=ROWS)
    frame = add(
        "frame",
        "print every metric of a scale as CSV, one line each",
        "For a spreadsheet or a notebook, where `pipeline.frame.frame(SCALE)` gives the same as a pandas frame.",
    )
    _scale(frame)
    noise = add(
        "noise",
        "measure how much seeds differ at a scale",
        "Writes configs/noise/SCALE.yaml from results with several seeds. Claims that compare single runs then know "
        "what a seed alone does. To get there: seeds: 4 in configs/scale/SCALE.yaml, Snakemake, this, seeds: 1 again.",
    )
    _scale(noise)
    noise.add_argument("--rows", choices=["headline", "all"], default="headline", help=ROWS)
    verify = add("verify", "compare every finished run, evaluation and table with what was recorded of it")
    _scale(verify)
    verify.add_argument(
        "--accept-code",
        nargs="*",
        metavar="NAME",
        help="record that the code of these methods and evaluations (without a name: of all) has changed in a way that "
        "affects no number, so that their results are not named again as made by other code",
    )
    explain = add(
        "explain",
        "say where a number comes from: study, config, run, evaluation, data, weights, code",
        "`explain mjp.t1.deit-s:top1` is a cell, `explain RUN` a run, `explain RUN optim.base_lr` a key of its config: "
        "every file that sets it, in order.",
    )
    _scale(explain)
    explain.add_argument("number", help="a cell as ROW:COLUMN, or the name of a run, or its beginning or end")
    explain.add_argument("key", nargs="?", help="a key of the run, such as optim.base_lr")
    clean = add(
        "clean",
        "delete abandoned runs and checkpoints that nothing needs",
        "Abandoned are runs that no config names any more. Results of current runs are never deleted. It lists "
        "everything with its size and asks first.",
    )
    clean.add_argument("--scale", help="this scale only, a file of configs/scale (default: every scale with results)")
    clean.add_argument("--yes", action="store_true", help="delete without asking")
    clean.add_argument("--dry-run", action="store_true", help="list only, delete nothing")


def _add_steps(add: Callable[..., argparse.ArgumentParser]) -> None:
    """What the rules of the workflow call, in its order."""
    prepare = add("prepare", "verify a data set and write its manifest", "Every sample is read and decoded once.")
    _scale_and_site(prepare)
    prepare.add_argument("--data", required=True, help="name of a data set that a run of this scale uses")
    prepare.add_argument(
        "--cache-only",
        action="store_true",
        help="write what the site's `cache` lacks of a set that is verified already: on a node with a disk of its own",
    )
    train = add("train", "train one run, or continue it", "On a SLURM site it submits the job and waits for it.")
    _scale_and_site(train)
    which = train.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", help="name of a run; `check --scale SCALE` lists them")
    which.add_argument("--config", type=Path, help="a config.resolved.yaml, which is enough to train that run again")
    _add_evaluate(add)
    table = add("table", "fill a table from the results and write it as JSON, CSV, Markdown and HTML")
    _scale(table)
    table.add_argument("--table", required=True, help="id of a table: study and key in configs/study, such as mjp.t4")
    claims = add("claims", "judge a study's claims on its tables")
    _scale(claims)
    claims.add_argument("--study", required=True, help="a file of configs/study, such as mjp")
    report = add("report", "write the report page", "Whatever is finished is in it.")
    _scale(report)
    for verb in (table, claims, report):
        verb.add_argument("--rows", choices=["headline", "all"], default="all", help=ROWS)
    track = add("track", "mirror runs, evaluations and tables into MLflow")
    _scale_and_site(track)
    track.add_argument("--follow", action="store_true", help="go on while Snakemake runs, then catch up and end")


def _add_evaluate(add: Callable[..., argparse.ArgumentParser]) -> None:
    """A step of the workflow, and a way to evaluate a model that no study has."""
    evaluate = add(
        "evaluate",
        "compute the evaluations of one job, or of any timm model; what is finished is not repeated",
        "With --job it is a step of the workflow. With --model it needs no run: `evaluate --model resnet50.a1_in1k "
        "robustness` fetches timm's weights, `evaluate --model deit_small_patch16_224 --weights deit.pth robustness` "
        "takes them from a file, `evaluate --model vit_base_patch16_224 --weights moco.pth.tar --train position_probe` "
        "trains a probe on its features. It prepares the data sets that it needs, reports those that this site does "
        "not have, and prints every number with its standard error.",
    )
    which = evaluate.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", help="a run and a group, such as RUN-quick; `status` lists them")
    which.add_argument("--model", metavar="NAME", help="a timm model, such as resnet50 or vit_base_patch16_224.mae")
    evaluate.add_argument(
        "--weights", type=Path, metavar="FILE", help="of --model: safetensors or .pth (default: timm's own, downloaded)"
    )
    evaluate.add_argument(
        "--train",
        action="store_true",
        help="of --model: the train split, too, which linear_probe, knn and position_probe learn from",
    )
    evaluate.add_argument(
        "evaluations",
        nargs="*",
        metavar="EVALUATION",
        help="of --model: files of configs/eval, such as adversarial, or a group of them (default: robustness)",
    )
    evaluate.add_argument("--scale", help="a file of configs/scale (default: demo with --job, paper with --model)")
    _site(evaluate)


def _add_attack(add: Callable[..., argparse.ArgumentParser]) -> None:
    """How people look at what gradients give away of an image of their own."""
    attack = add(
        "attack",
        "recover an image from the gradient of a training step on it",
        "A client trains on the image and sends its gradient; the attacker has gradient and model, and looks for the "
        "image. `attack --model 3fa9c1 --image shirt.png --attack april` attacks a run of a study, by as much of the "
        "beginning or the end of its name as no other run has; `attack --model deit_small_patch16_224 --weights "
        "deit.pth --image cat.jpg --attack gradvit` attacks a ViT of timm. It prints what the attacker was given and "
        "how close the recovered image is, and writes pictures and numbers.json into a folder.",
    )
    attack.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="a ViT of timm, or a finished run; `check --scale SCALE` lists them",
    )
    attack.add_argument(
        "--image",
        required=True,
        nargs="+",
        type=Path,
        metavar="FILE",
        dest="images",
        help="PNG, JPEG or the like; each is attacked by itself",
    )
    attack.add_argument(
        "--attack",
        required=True,
        choices=["april", "cosine", "gradvit"],
        help="april: the closed form, in seconds, given float64 gradients of a model whose first block has no norm and "
        "no skips. cosine (Geiping et al. 2020), gradvit (Hatamizadeh et al. 2022): a search for an image with the "
        "same gradient, on the model as it is; for a GPU, unless the model is tiny",
    )
    attack.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="of a model of timm: safetensors or .pth (default: timm's own, downloaded)",
    )
    attack.add_argument(
        "--label",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        dest="labels",
        help="class of all images, or of each, counted from 0 (default: what the model predicts)",
    )
    attack.add_argument(
        "--iterations", type=int, metavar="N", help="of cosine and gradvit (default: as configs/eval and the scale say)"
    )
    attack.add_argument("--scale", help="a file of configs/scale (default: that of the run)")
    attack.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for what it writes (default: results/attacks/MODEL-IMAGE-ATTACK); several images get folders in it",
    )
    _site(attack)


def _add_locks(add: Callable[..., argparse.ArgumentParser]) -> None:
    """How people hand out a model that only those with its key can use."""
    key = add(
        "key",
        "make a key for a model, or recover the key of a locked one",
        "`key new --like vit.safetensors --model vit_base_patch16_224 --out vit.key` draws a key from the system's "
        "cryptographic generator; its file is readable by its owner alone, and is never overwritten. `key recover "
        "--like original.safetensors --locked locked.safetensors` shows what a lock is worth against those who have "
        "the original weights.",
    )
    key.add_argument("what", choices=["new", "recover"], help="new: draw one; recover: find the one of a locked model")
    key.add_argument(
        "--like",
        required=True,
        type=Path,
        metavar="MODEL",
        help="safetensors of a ViT of timm, or of a BERT or GPT-2 of transformers, or the index of several; of "
        "`recover`: the original",
    )
    key.add_argument("--locked", type=Path, metavar="FILE", help="of `recover`: what `lock` wrote")
    key.add_argument("--out", type=Path, metavar="KEY", help="the key to write, with a name that ends in .key")
    key.add_argument("--heads", type=int, help="attention heads of a block, where no config.json beside it says it")
    key.add_argument(
        "--model", metavar="NAME", help="of a ViT: the architecture of timm (default: as config.json beside it says)"
    )
    key.add_argument(
        "--kind",
        choices=["independent", "shared", "released"],
        help="independent: everything is drawn anew (default); shared: the heads of a block are permuted alike "
        "(default where queries are normalised); released: the small keys of the authors' code",
    )
    lock = add("lock", "permute the weights of a model so that it works with its key alone", LOCK)
    unlock = add("unlock", "give back the weights of a locked model", "They are the original, byte for byte.")
    for verb, text in ((lock, "safetensors of the model that the key was made for"), (unlock, "what `lock` wrote")):
        verb.add_argument("model", type=Path, metavar="MODEL", help=text)
        verb.add_argument("--key", required=True, type=Path, help="what `key new` wrote")
        verb.add_argument(
            "--out", required=True, type=Path, metavar="FILE", help="a new file, or folder; none is overwritten"
        )
    infer = add(
        "infer",
        "ask a locked model, with its key, about an image or a text",
        "The weights stay locked. A ViT gives the classes of an image, a BERT those of a text or the words for its "
        "[MASK], a GPT-2 the next words. transformers' config.json and tokenizer lie beside the model.",
    )
    infer.add_argument("locked", type=Path, metavar="MODEL", help="what `lock` wrote")
    infer.add_argument("--key", required=True, type=Path, help="what `key new` wrote")
    asked = infer.add_mutually_exclusive_group(required=True)
    asked.add_argument("--image", type=Path, metavar="FILE", help="for a ViT: PNG, JPEG or the like")
    asked.add_argument("--text", help="for a BERT or a GPT-2")
    infer.add_argument(
        "--model", metavar="NAME", help="the architecture of timm (default: as config.json beside it says)"
    )
    _site(infer)


def _scale_and_site(verb: argparse.ArgumentParser) -> None:
    _scale(verb)
    _site(verb)


def _scale(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--scale", default="demo", help="a file of configs/scale (default: %(default)s)")


def _site(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--site", help="a file of configs/site, or the path of one (default: $PATCHWORK_SITE, otherwise local)"
    )
