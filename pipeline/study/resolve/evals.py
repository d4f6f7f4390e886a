"""Evaluations of a study: files of configs/eval with other keys, in `evals` of the study or `set` of a column."""

from pipeline.core.config import Layers, nearest
from pipeline.core.errors import ConfigError
from pipeline.study.resolve.draft import Draft, fragment, fragment_names
from pipeline.study.spec import TRAIN, Column, Study


def check_evals(study: Study, file: str) -> None:
    """Files and scales that `evals` names must exist, and its own names must differ from those of files."""
    known, scales = fragment_names("eval"), fragment_names("scale")
    lines = []
    for name, spec in study.evals.items():
        where = f"{file}: evals.{name}"
        if name in (*known, TRAIN):
            lines.append(f"{where}: configs/eval has a file of this name; choose another name")
        if spec.eval not in known:
            lines.append(f"{where}.eval: no eval {spec.eval!r}; {nearest(spec.eval, known)}")
        lines += [f"{where}.at: no scale {at!r}; {nearest(at, scales)}" for at in spec.at if at not in scales]
    if lines:
        raise ConfigError("\n".join(lines))


def eval_layers(draft: Draft, column: Column, where: str) -> Layers:
    """The file of an evaluation, the scale's keys for it, the entry in the study's `evals`, and the column's `set`."""
    name = column.eval or ""
    file, own = draft.file_of_eval(name), draft.study.evals.get(name)
    if own is None and name not in (known := fragment_names("eval")):
        raise ConfigError(f"{where}.eval: no eval {name!r}; {nearest(name, [*known, *draft.study.evals])}")
    layers = [
        fragment("eval", file, f"{draft.file}: evals.{name}.eval"),
        (f"{draft.scale_file}: eval.{file}", draft.scale.eval.get(file, {})),
    ]
    if own:
        scale, where_own = draft.graph.scale, f"{draft.file}: evals.{name}"
        layers += [(f"{where_own}.set", own.set), (f"{where_own}.at.{scale}", own.at.get(scale, {}))]
    found = Layers(*layers, (f"{where}.set", column.set))
    found.default = layers[0][0]
    return found
