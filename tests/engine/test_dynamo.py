"""torch._dynamo stays out of processes that do not compile, and is the real one in those that do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import PATIENCE_S
from tiny_runs import ALONE, RICH, tiny_run
from torch import nn

from pipeline.core.dynamo import AdamW
from pipeline.engine.loop import build_method
from pipeline.engine.optim import parameter_groups, step_if_finite

pytestmark = pytest.mark.slow

TRAIN_AND_EVALUATE = """
import json, sys
from pathlib import Path
from tiny_runs import RICH, classify, tiny_run
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.results import RunFolder
from pipeline.site import Site

images, results = map(Path, sys.argv[1:])
run, site = tiny_run(RICH), Site(device="cpu", data={"small": images}, workers=0)
paths = RunFolder(results, run.name)
train_run(run, paths, site, StopRequest())
paths.publish()
found = {"trained": "torch._dynamo" in sys.modules}
classify(run, paths, site)
found |= {"evaluated": "torch._dynamo" in sys.modules, "slow": [m for m in ("sympy", "triton") if m in sys.modules]}

import torch
import torchvision

boxes = [torch.tensor([[0.0, 0.0, 4.0, 4.0]])]
found["regions"] = torchvision.ops.roi_align(torch.ones(1, 1, 8, 8), boxes, 2).flatten().tolist()
found["compiled"] = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist()
found["real"] = sys.modules["torch._dynamo"].__file__ is not None and "torch._dynamo.eval_frame" in sys.modules
found["supported"] = sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu")
print(json.dumps(found))
"""

ASK_FOR_MORE = """
import json, sys
from pipeline.core.dynamo import dynamo_deferred

with dynamo_deferred():
    from torch._dynamo.utils import counters
    import torch._dynamo.config
    import torchvision
print(json.dumps({"counters": len(counters), "real": sys.modules["torch._dynamo"].__file__ is not None}))
"""


def in_fresh_process(script: str, *arguments: object) -> dict:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_process__that_trains_and_evaluates__imports_no_compiler_and_can_compile_afterwards(images, results):
    found = in_fresh_process(TRAIN_AND_EVALUATE, images, results)
    assert not found["trained"] and not found["evaluated"] and not found["slow"]
    assert found["regions"] == [1.0] * 4
    assert found["compiled"] == [2.0, 2.0] and found["real"]
    assert found["supported"] is True


def test_library__that_asks_for_something_else__gets_the_real_module():
    assert in_fresh_process(ASK_FOR_MORE) == {"counters": 0, "real": True}


def trained_with(optimizer_class: type[torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Four updates, one of them skipped, and the state written and read in between."""
    run = tiny_run(RICH)
    method = build_method(run)
    optimizer = optimizer_class(parameter_groups(method, run.optim), lr=1e-2, fused=True)
    images = torch.linspace(-1, 1, 8 * 28 * 28).view(8, 1, 28, 28)
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = method.encoder(images).square().mean()
        loss.backward()
        step_if_finite(optimizer, loss, torch.tensor(torch.inf if step == 2 else 1.0, device=ALONE.device))
        optimizer.load_state_dict(optimizer.state_dict())
    return method, optimizer


def test_adamw__without_the_compilers_wrappers__updates_as_torchs_to_the_last_bit():
    (ours, our_optimizer), (theirs, their_optimizer) = trained_with(AdamW), trained_with(torch.optim.AdamW)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    first, second = our_optimizer.state_dict(), their_optimizer.state_dict()
    assert first["param_groups"] == second["param_groups"] and first["state"].keys() == second["state"].keys()
    for index, state in first["state"].items():
        assert all(torch.equal(value, second["state"][index][name]) for name, value in state.items())
