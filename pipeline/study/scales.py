"""At which scales a study runs, and which of them a command means that names none.

A study lists its `scales`, its default first. Without the key, the study of a paper (it has a file in
configs/expected) runs at every scale that has papers, and any other study runs as it is written, at scale `own`.
"""

import re
from collections.abc import Iterable, Sequence

from pipeline.core.config import CONFIGS, names, read_yaml_once
from pipeline.core.errors import ConfigError

DEFAULT, OWN = "demo", "own"


def has_paper(study: str) -> bool:
    return (CONFIGS / "expected" / f"{study}.yaml").exists()


def runs_at(study: str, scale: str, papers: bool) -> bool:
    """Whether a study runs at a scale; `papers`: whether the scale has studies of papers."""
    stated = stated_scales(study)
    return scale in stated if stated else has_paper(study) == papers


def elsewhere(scales: Sequence[str], scale: str) -> str:
    """Why a row or a column that is for some scales has no numbers at another one; without scales it is for all."""
    return "" if not scales or scale in scales else f"computed only at scale {', '.join(scales)}"


def run_at(targets: Iterable[str], scale: str) -> bool:
    """Whether the studies of all these targets run at a scale."""
    path = CONFIGS / "scale" / f"{scale}.yaml"
    papers = not path.exists() or read_yaml_once(path).get("papers", True)
    return all(runs_at(study, scale, papers) for target in targets if (study := study_of(target)))


def stated_scales(study: str) -> list[str]:
    """The scales that a study names; every scale where its file is wrong, so that each of them reports that."""
    path, known = CONFIGS / "study" / f"{study}.yaml", names(CONFIGS / "scale")
    try:
        stated = read_yaml_once(path).get("scales", [])
    except (ConfigError, OSError):
        return known
    return stated if isinstance(stated, list) and all(scale in known for scale in stated) else known


def default_scale(targets: Iterable[str]) -> str:
    """The scale of these targets where a command names none: that of their studies, and `demo` of everything else."""
    found = {target: _default_of(study) for target in targets if (study := study_of(target))}
    scales = [*dict.fromkeys(found.values())]
    if len(scales) > 1:
        listed = ", ".join(f"{target} at {scale}" for target, scale in found.items())
        raise ConfigError(f"these targets run at different scales: {listed}; run them one by one, or name one scale")
    return scales[0] if scales else DEFAULT


def _default_of(study: str) -> str:
    return next(iter(stated_scales(study)), DEFAULT if has_paper(study) else OWN)


def study_of(target: str) -> str:
    """The study of a target such as `mine` or `mine_table1`; empty where there is none."""
    known = names(CONFIGS / "study")
    near = [study for study in known if target == study or re.match(rf"{study}_(table|figure)_?\w", target)]
    return max(near, key=len, default="")
