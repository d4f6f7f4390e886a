"""What MkDocs calls while it builds the manual: the pages that are made from the project itself, and the navigation."""

from pathlib import Path

import command_reference
import config_reference
import python_reference
from import_graph import picture
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from rooms import list_of_rooms
from sections import ROOT, Section, readable, section, sections
from usage import Usage

TUTORIALS = ("paper", "images", "method", "cluster", "lock", "attack")
QUICK_START = ("Quick start", "Run a paper")  # sections of README
OWN_IMAGES = "To train on images of your own, follow [the recipe](how-to/your-own-images.md).\n"
EXAMPLES = ("headline/index.html", "index.html", "headline.html")  # the report of the demo, where there is one
EXAMPLE = "example/report.md"
PICTURE, ROOMS = "<!-- picture of imports -->", "<!-- list of rooms -->"
TUTORIAL_BOOST = 5  # in the search: a word of a question is in many keys, but whoever asks one wants the tutorial


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    guide = [{each.title: f"how-to/{each.slug}.md"} for each in [section("README.md", "Lock a model"), *_guide()]]
    recipes = [{each.title: f"extend/{each.slug}.md"} for each in sections("CONTRIBUTING.md")]
    keys = ["optim", "model", "data", "methods", "evaluations", "studies", "scales", "site"]
    config.nav = [
        {"Home": "index.md"},
        {"Quick start": "quick-start.md"},
        {"Tutorials": [f"tutorials/{name}.md" for name in TUTORIALS]},
        {"How-to": guide},
        {"Extending": recipes},
        {"Reference": [f"reference/{name}.md" for name in keys] + ["reference/commands.md", "reference/python.md"]},
        {"About": [{"Glossary": "glossary.md"}, "architecture.md", {"Example report": EXAMPLE}, "changelog.md"]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in _pages().items():
        files.append(File.generated(config, path, content=text))
    if example := _example():
        found = example.parent.rglob("*") if example.name == "index.html" else [example]
        for file in filter(Path.is_file, found):
            place = f"example/{file.relative_to(example.parent).as_posix()}"
            files.append(File.generated(config, place, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    if page.file.src_uri.startswith("tutorials/"):
        page.meta["search"] = {"boost": TUTORIAL_BOOST}
    if PICTURE in markdown:
        markdown = markdown.replace(PICTURE, picture()).replace(ROOMS, list_of_rooms())
    return markdown


def _pages() -> dict[str, str]:
    """Path -> text of every page that no file of docs/ has."""
    found = {f"how-to/{each.slug}.md": each.page for each in [section("README.md", "Lock a model"), *_guide()]}
    found |= {f"extend/{each.slug}.md": each.page for each in sections("CONTRIBUTING.md")}
    start = [section("README.md", title) for title in QUICK_START]
    found["quick-start.md"] = "# Quick start\n\n" + "\n".join(f"## {each.title}\n\n{each.text}\n" for each in start)
    found["quick-start.md"] += f"\n{OWN_IMAGES}"
    found["glossary.md"] = Section("Glossary", section("README.md", "Glossary").text).page
    found["changelog.md"] = readable((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    found |= config_reference.pages(Usage())
    found["reference/commands.md"] = command_reference.page()
    found["reference/python.md"] = python_reference.page()
    found[EXAMPLE] = _example_page()
    return found


def _guide() -> list[Section]:
    return sections("GUIDE.md")


def _example() -> Path | None:
    """The page with which the report of the demo begins."""
    folder = ROOT / "results/demo/report"
    return next((folder / name for name in EXAMPLES if (folder / name).exists()), None)


def _example_page() -> str:
    example = _example()
    link = (
        f"[Open the report of the demo]({example.name})"
        if example
        else "There is no report yet: run `make demo` first."
    )
    return (
        f"# Example report\n\nThe report that `make demo` made on this machine, when this manual was built.\n\n{link}\n"
    )
