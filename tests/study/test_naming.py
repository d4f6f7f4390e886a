"""Names of config files, models and data sets: what Snakemake could not use is refused with the other mistakes."""

import re
from pathlib import Path

import pytest

from pipeline.core.naming import NAME, PLAIN_NAME, RULES, file_name_problems, name_problem

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {
    "study": ("my-study", "my_study"),
    "scale": ("Big", "big"),
    "method": ("mjp.v2", "mjp_v2"),
    "model": ("vit_mine-2.0", "vit_mine-2_0"),
    "data": ("my images", "my_images"),
    "eval": ("-classify", "classify"),
    "recipe": ("größe", "gr__e"),
}


@pytest.mark.parametrize(("kind", "names"), FILES.items(), ids=FILES.keys())
@pytest.mark.slow
def test_file_name__that_snakemake_cannot_use__is_one_line_with_a_proposal(project, kind, names):
    wrong, proposed = names
    known = {"study": "mjp", "scale": "demo", "method": "mjp", "model": "vit_demo", "data": "fashion_mnist"}
    content = project.read(f"{kind}/{known.get(kind, 'classify' if kind == 'eval' else 'mjp')}.yaml")
    project.write(f"{kind}/{wrong}.yaml", content)

    line = next(line for line in project.problems() if "file name" in line)

    assert line.startswith(f"configs/{kind}/{wrong}.yaml: file name: found {wrong!r}; expected ")
    assert line.endswith(f"such as {proposed!r}; rename the file")


@pytest.mark.slow
@pytest.mark.parametrize(("file", "key"), [("model/vit_demo.yaml", "model"), ("data/fashion_mnist.yaml", "data")])
def test_name_in_a_file__with_a_dot__names_file_key_and_a_proposal(project, file, key):
    content = project.read(file)
    content[key]["name"] = "mine-2.0"
    project.write(file, content)

    line = next(line for line in project.problems() if f"{key}.name" in line)

    assert line.startswith(f"configs/{file}: {key}.name: found 'mine-2.0'; expected letters")
    assert line.endswith("such as 'mine-2_0'")


@pytest.mark.slow
def test_study__named_like_a_rule__is_refused(project):
    project.write("study/evaluate.yaml", {"title": "x"})

    assert "configs/study/evaluate.yaml: file name: found 'evaluate'; a rule of the workflow" in project.problems()[0]


def test_study__named_like_a_report__is_refused(project):
    project.write("study/headline.yaml", {"title": "x"})

    (line,) = file_name_problems(project.configs)
    assert "headline.yaml: file name: found 'headline'; a report has this name; rename the file" in line


@pytest.mark.slow
def test_table__with_a_key_of_one_letter__is_refused(project):
    project.edit("study/mjp.yaml", "  t4:\n", "  t:\n")

    assert "tables.t.[key]: found 't'; the key of a table begins with t, such as t3" in project.problems()[0]


@pytest.mark.parametrize("pattern", [NAME, PLAIN_NAME])
@pytest.mark.parametrize("name", ["A.b", "ä", "...", "", "a b", "-x", "My-Study"])
def test_proposal__is_itself_a_good_name(pattern, name):
    if problem := name_problem(name, pattern):
        assert name_problem(problem.split("such as ")[1].strip("'"), pattern) == ""


def test_rules__are_those_of_the_workflow():
    files = [REPOSITORY / "Snakefile", *(REPOSITORY / "workflow/rules").glob("*.smk")]
    text = "\n".join(path.read_text() for path in files)
    rules = re.findall(r"^rule (\w+):", text, re.M) + re.findall(r"^use rule \w+ as (\w+)", text, re.M)
    assert sorted(rules) == sorted(RULES)
