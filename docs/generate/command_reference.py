"""The reference of the commands, from the options that each verb declares."""

import argparse
from importlib import import_module

from pipeline.cli import VERBS


def page() -> str:
    text = (
        "# Commands\n\n`python -m pipeline VERB`, or `patchwork VERB` where the project is installed. "
        "`snakemake TARGET` calls the steps in the right order.\n\n"
    )
    for moment, verbs in VERBS.items():
        text += f"## {moment[:1].upper()}{moment[1:]}\n\n" + "".join(_verb(verb) for verb in verbs)
    return text


def _verb(name: str) -> str:
    command = import_module(f"pipeline.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m pipeline {name}", add_help=False)
    command.add_options(parser)
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    usage = parser.format_usage().removeprefix("usage: ")
    options = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    summary = f"{command.SUMMARY[:1].upper()}{command.SUMMARY[1:]}. {command.DETAILS}"
    return f"### {name}\n\n{summary}\n\n```text\n{usage}```\n\n{_options(options)}\n"


def _options(options: list[argparse.Action]) -> str:
    if not options:
        return ""
    return "| option | meaning |\n|---|---|\n" + "".join(f"| {_name(each)} | {_help(each)} |\n" for each in options)


def _name(option: argparse.Action) -> str:
    text = ", ".join(option.option_strings) or str(option.metavar or option.dest).upper()
    return f"`{text}`" + (" (required)" if option.required and option.option_strings else "")


def _help(option: argparse.Action) -> str:
    text = (option.help or "") % {**vars(option), "prog": ""}
    choices = f" One of {', '.join(f'`{each}`' for each in option.choices)}." if option.choices else ""
    text = f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
    return (text + choices).replace("|", "\\|").replace("<", "&lt;")
