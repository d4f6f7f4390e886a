"""`python -m pipeline schema`."""

import argparse

SUMMARY = "write the JSON Schemas with which editors complete and explain config files"
DETAILS = (
    "They are made from the config classes and written to configs/schema. The first line of each config file names "
    "its schema; the command adds this line where it is missing. Run it again after you add a method, an evaluation, "
    "a kind of data or a key. With --check nothing is written, and the exit code is 1 if something is out of date."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing; name the files that are out of date")


def run(options: argparse.Namespace) -> int:
    from pipeline.core.config import shown
    from pipeline.schema.files import named_schemas, outdated, write_schemas, written_schemas

    found = outdated(written_schemas() | named_schemas()) if options.check else write_schemas()
    for path in found:
        print(f"{shown(path)}: {'out of date' if options.check else 'written'}")
    hint = "; `python -m pipeline schema` writes them" if options.check and found else ""
    print(f"files {'out of date' if options.check else 'written'}: {len(found)}{hint}")
    return int(options.check and bool(found))
