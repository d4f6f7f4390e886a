"""Whether a loss compiles into one graph, once, and gives the same numbers."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch

from pipeline.method_checks.bench import Bench, compute_loss, first_line, name_of, seeded, shown_frame
from pipeline.methods.base import Method

# With seed 0 to 5 and both ends of the schedule there are draws that shuffle and draws that do not.
PROGRESS = (0.0, 0.5, 0.5, 0.9, 0.9, 1.0)
CLOSE = 1e-5  # absolute and relative


def check_graph(bench: Bench) -> list[str]:
    """Or one graph for each of the parts that a method names in `compiled`."""
    import torch._dynamo

    method, batch = bench.method(), bench.batch(2)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, name = _compiled_twin(method), name_of(method)
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for seed, progress in enumerate(PROGRESS):
                found = compute_loss(method, seeded(batch, seed), progress, model).loss
                expected = compute_loss(method, seeded(batch, seed), progress).loss
                if not torch.allclose(found, expected, atol=CLOSE, rtol=CLOSE):
                    return [
                        f"{name}.loss is {found.item():.6g} compiled and {expected.item():.6g} as it is, with one "
                        "draw; it read something else when it was compiled, such as self.step: give it to `loss` as "
                        "part of the draw"
                    ]
    except torch._dynamo.exc.RecompileError as error:
        return [_recompiled(method, error)]
    except torch._dynamo.exc.TorchDynamoException as error:
        return [_broken(method, error)]
    return _count_problems(method)


def _compiled_twin(method: Method) -> Any:
    if method.compiled is None:
        return torch.compile(method, backend="eager", fullgraph=True)
    twin = deepcopy(method)
    for name in method.compiled:
        twin.get_submodule(name).compile(backend="eager", fullgraph=True)
    return twin


def _broken(method: Method, error: Exception) -> str:
    place = shown_frame([*getattr(error, "real_stack", [])], method)
    return (
        f"{name_of(method)}.loss does not compile into one graph{place}: {first_line(error)}; it must not ask for the "
        "value of a tensor: choose with torch.where, or choose in `draw`, which is not compiled; `compiled` names "
        "parts that compile where the whole cannot"
    )


def _recompiled(method: Method, error: Exception) -> str:
    reasons = [line.strip() for line in str(error).splitlines() if line.strip().startswith("-")]
    reason = reasons[0].lstrip("- ") if reasons else first_line(error)
    return (
        f"{name_of(method)}.loss was compiled a second time ({reason}); each time takes seconds to minutes: draws must "
        "have the same keys, shapes and dtypes in every step, and numbers that change must be tensors in the draw"
    )


def _count_problems(method: Method) -> list[str]:
    counters, expected = torch._dynamo.utils.counters, len(method.compiled or ("all",))
    graphs, breaks = int(counters["stats"]["unique_graphs"]), [*_words(counters["graph_break"])]
    if graphs == expected and not breaks:
        return []
    why = f" ({breaks[0]})" if breaks else ""
    return [
        f"{name_of(method)}.loss compiles into {graphs} graphs{why}, expected {expected}: one for each name in "
        "`compiled`"
    ]


def _words(breaks: Iterable[str]) -> Iterable[str]:
    return (text.strip().splitlines()[0] for text in breaks)
