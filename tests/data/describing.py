"""A folder described, and its config read as a run would read it."""

from pipeline.core.config import Layers, read_yaml
from pipeline.data.describe.describe import Choices, describe, write_config
from pipeline.data.kind import parse_data


def described(folder, **choices):
    return describe(folder, Choices(name="mine", **choices), progress=False)


def reread(configs, description):
    """The config as it was written, once."""
    assert write_config(description, force=False)
    assert not write_config(description, force=False)
    return parse_data(Layers(("mine", read_yaml(configs / "mine.yaml")["data"])))
