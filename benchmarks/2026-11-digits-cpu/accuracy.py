"""Val top-1 of the digits recipe for three seeds with every engine, each run a fresh `vitscale train`.

python accuracy.py OUT [ENGINE ...]     appends to OUT/records.jsonl; engines as in CASES, all by default
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "single": ["--nproc", "1"],
    "ddp": ["--nproc", "2", "parallel.engine=ddp"],
    "fsdp2": ["--nproc", "2", "parallel.engine=fsdp2"],
    **{f"zero{s}": ["--nproc", "2", "parallel.engine=deepspeed", f"parallel.zero_stage={s}"] for s in range(4)},
}
SEEDS = (0, 1, 2)


def main(out: Path, engines: list[str]) -> None:
    for engine in engines or list(CASES):
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as scratch:
                run = Path(scratch) / "run"
                command = ["train", "digits", *CASES[engine], f"train.seed={seed}", "--device", "cpu"]
                done = subprocess.run(
                    [sys.executable, "-m", "vitscale", *command, "--out", str(run)], capture_output=True, text=True
                )
                record = {"engine": engine, "seed": seed, "command": "vitscale " + " ".join(command)}
                record |= {"exit_code": done.returncode}
                if done.returncode:
                    record["stderr"] = done.stderr[-2000:]
                else:
                    record |= json.loads((run / "result.json").read_text())
                    record["environment"] = json.loads((run / "environment.json").read_text())
            with (out / "records.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(engine, seed, record.get("top1"), record.get("train_seconds"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
