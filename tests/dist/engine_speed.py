"""Checks of engine_worker that count what an engine asks of the host. In: its Bench. Out: figures to be judged."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine_making import BF16, SGD, batch_of
from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def quiet(bench: Any) -> dict[str, Any]:
    """What one update asks of the host, in bf16 and without clipping, after some others."""
    engine = bench.engine(precision=BF16, optim=SGD)
    bench.run(engine, 3)
    accelerator = __import__("deepspeed").accelerator.get_accelerator()
    waits: list[int] = []
    accelerator.synchronize = lambda *_: waits.append(1)
    with Seen() as seen:
        output = engine.train_batch(batch_of(3, bench.world))
    del accelerator.synchronize
    engine.close()
    reads, norms = seen.ops["_local_scalar_dense"], seen.ops["linalg_vector_norm"]
    told = output.grad_norm is not None
    return {"reads": reads, "norms": norms, "checks": seen.ops["amax"], "waits": len(waits), "told": told}


def compiled(bench: Any) -> dict[str, Any]:
    """Losses and weights of a compiled engine, and how many graphs it took."""
    from torch._dynamo.utils import counters

    counters.clear()
    engine = bench.engine(performance={"compile": True}, optim=SGD)
    losses = bench.run(engine, 4)
    bench.keep("compiled", engine.gathered_parameters())
    engine.close()
    return {"losses": losses, "graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"])}
