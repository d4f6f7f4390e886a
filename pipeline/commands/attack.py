"""`python -m pipeline attack`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_model_of_timm, add_scale, add_site, named_model

SUMMARY = "recover an image from the gradient of a training step on it"
DETAILS = (
    "A client trains on the image and sends its gradient; the attacker has the gradient and the model, and looks for "
    "the image. `attack --model 3fa9c1 --image shirt.png --attack april` attacks the run of a study whose name begins "
    "or ends with 3fa9c1; `attack --model deit_small_patch16_224 --weights "
    "deit.pth --image cat.jpg --attack gradvit` attacks a timm ViT. The command prints what the attacker was given "
    "and how close the recovered image is, and writes pictures and numbers.json into a folder."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="a timm ViT, or a finished run; `check --scale SCALE` lists runs",
    )
    parser.add_argument(
        "--image",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        dest="images",
        help="PNG, JPEG or similar; several images are attacked one by one",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="instead of --image: a folder with one folder per class, or the name of a file in configs/data; its first "
        "validation images are attacked, with their classes as labels",
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="number of images from --data, from the classes in turn (default: 1)"
    )
    parser.add_argument(
        "--attack",
        required=True,
        choices=["april", "cosine", "gradvit"],
        help="april: solves for the image in closed form, in seconds, from float64 gradients; for this, the norm and "
        "the skip connections of the model's first block are removed. cosine (Geiping et al. 2020; the evaluation "
        "gradient_matching) and gradvit (Hatamizadeh et al. 2022): search for an image with the same gradient, on the "
        "unchanged model; use a GPU unless the model is tiny",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights of a timm model: safetensors or .pth (default: timm's own, downloaded)",
    )
    add_model_of_timm(parser)
    parser.add_argument(
        "--label",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        dest="labels",
        help="class of all images, or one class per image, counted from 0 (default: what the model predicts)",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="number of iterations of cosine and gradvit (default: from configs/eval and the scale)",
    )
    add_scale(parser, None, "that of the run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for the output (default: results/attacks/MODEL-IMAGE-ATTACK); with several images, a subfolder "
        "each",
    )
    add_site(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.launch.gpus import hold_gpus
    from pipeline.launch.memory import explain_memory
    from pipeline.results import results_of
    from pipeline.site import load_site
    from pipeline.standalone.attack import AttackRequest, attack_images

    given = {key: getattr(options, key) for key in AttackRequest.__dataclass_fields__ if key != "model"}
    request = AttackRequest(named_model(options), **given)
    site, job_log = load_site(), results_of(options.scale or "paper").log("attack", options.model)
    with hold_gpus(site, 1, job_log), explain_memory(f"the attack on {options.model}", site):
        for number, report in enumerate(attack_images(request, site)):
            print(f"{chr(10) if number else ''}{report}", flush=True)
