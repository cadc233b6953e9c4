"""Two devices of which one is slowed by extra work in its own step: step time with parallel.balance=none and auto
beside the ideal, global_batch_size / the sum of what each device does alone.

    python benchmarks/2026-12-balance/unequal.py --out OUT                        # two GPUs, ViT-B/16 at 224 px
    python benchmarks/2026-12-balance/unequal.py --out OUT --config digits --device cpu   # the script itself, on a CPU

The slow device runs every block `ratio` times and adds the results of all but the first times zero: forward and
backward cost that much more, and the weights learn the same. Needs an installed vitscale. One JSON line per run goes to
OUT/results.jsonl, the table to standard output; a run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

ENGINES = {
    "ddp": ["parallel.engine=ddp"],
    "fsdp2": ["parallel.engine=fsdp2"],
    **{f"zero{stage}": ["parallel.engine=deepspeed", f"parallel.zero_stage={stage}"] for stage in range(4)},
}
UPDATES, WARMUP, EVERY = 100, 30, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default="synthetic-vit-b16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--ratios", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--micro", type=int, default=64, help="images of a micro-step per device, on average")
    parser.add_argument("keys", nargs="*", help="more KEY=VALUE of the config, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    alone = {ratio: step_s(run(options, f"alone{ratio}", ["parallel.engine=single"], [ratio])) for ratio in
             (1, *options.ratios)}  # fmt: skip
    for engine, ratio in product(options.engines, options.ratios):
        rates = options.micro / alone[1] + options.micro / alone[ratio]
        line = f"{engine:6} {ratio}:1  ideal {1e3 * 2 * options.micro / rates:7.1f} ms"
        for balance in ("none", "auto"):
            keys = [*ENGINES[engine], f"parallel.balance={balance}"]
            found = run(options, f"{engine}-{ratio}-{balance}", keys, [1, ratio])
            line += f"  {balance} {1e3 * step_s(found):7.1f} ms ({', '.join(map(str, found['shares']))})"
        print(line, flush=True)


def step_s(found: dict[str, Any]) -> float:
    """Median of the log intervals after the warm-up."""
    return statistics.median(found["step_time_s"])


def run(options: argparse.Namespace, name: str, keys: list[str], ratios: list[int]) -> dict[str, Any]:
    """One run in fresh processes, or what it found before."""
    results = options.out / "results.jsonl"
    for line in results.read_text().splitlines() if results.exists() else ():
        if (found := json.loads(line))["name"] == name:
            return found
    # Shapes may change while a run goes on, so neither of the fast paths that fix them; the same for the runs alone.
    fixed = ["performance.compile=false", "performance.cuda_graph=false", f"train.micro_batch_size={options.micro}"]
    fixed += ["train.grad_accum_steps=1", "train.global_batch_size=none", f"train.max_updates={UPDATES}"]
    fixed += ["eval.every_epochs=none", "checkpoint.every_epochs=none", f"log.every_updates={EVERY}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(ratios)}"]
    command += [__file__, options.config, str(options.out / name), options.device, *fixed, *options.keys, *keys]
    subprocess.run(command, check=True, env={**os.environ, "VITSCALE_RATIOS": json.dumps(ratios)})
    rows = [json.loads(line) for line in (options.out / name / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if row["kind"] == "train" and row["update"] > WARMUP]
    shares = [row["shares"] for row in rows if "shares" in row][-1]
    told = [row for row in rows if row["kind"] in ("balance", "straggler")]
    notes = [note for row in rows if row["kind"] == "start" for note in row["notes"]]
    environment = json.loads((options.out / name / "environment.json").read_text())
    found = {"name": name, "ratios": ratios, "shares": shares, "step_time_s": times, "events": told, "notes": notes}
    with results.open("a") as file:
        file.write(json.dumps({**found, "keys": [*fixed, *options.keys, *keys], "environment": environment}) + "\n")
    return found


def rank_main(config: str, out: str, device: str, keys: list[str]) -> None:
    """One rank: `vitscale train`, with a slow device under it."""
    from vitscale import assembly
    from vitscale.config.load import load_config
    from vitscale.run import train

    ratio = json.loads(os.environ["VITSCALE_RATIOS"])[int(os.environ["RANK"])]
    build = assembly.build_model
    assembly.build_model = lambda *given, **named: slowed(build(*given, **named), ratio)
    train(load_config(config, keys), Path(out), device=device, conclude=False)


def slowed(model: Any, ratio: int) -> Any:
    """Every block does its work `ratio` times, forward and backward."""

    def several(forward: Any) -> Any:
        def run_block(x: Any) -> Any:
            result = forward(x)
            for _ in range(ratio - 1):
                result = result + 0.0 * forward(x)
            return result

        return run_block

    for block in model.blocks:
        block.forward = several(block.forward)
    return model


if __name__ == "__main__":
    if "VITSCALE_RATIOS" in os.environ:
        rank_main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
