"""The graph at a scale as JSON, for tests that want it from a copy of the project: it resolves configs and builds no
model, which takes a second instead of four."""

import sys

from pipeline.study.resolve.graph import load_graph

print(load_graph(sys.argv[1]).model_dump_json())
