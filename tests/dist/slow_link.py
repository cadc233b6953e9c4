"""Runs measure_worker's job and keeps its outcome: `python slow_link.py FOLDER`, inside slow_link.sh."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from vitscale.results.files import write_json
from vitscale.study.case import Job, load_payload
from vitscale.study.runner import run_job

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = Job("slow-link", "measure_worker", load_payload(folder), 2, timeout_s=150)
    write_json(folder / "outcome.json", asdict(run_job(job, folder / "job")))
