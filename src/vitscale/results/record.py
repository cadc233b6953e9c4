"""Record: one case of a study, once run; a line of records.jsonl. The schema is versioned, and strict. Torch-free.

In: what a worker measured and the runner saw, or a row of somebody else's published table. Out: read by analysis and
report. A failure is a record too. Times are in seconds, memory in bytes; None means not measured, never zero. Raw
values per update are kept, and everything that can be computed from them is left to analysis.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1
RECORDS_FILE = "records.jsonl"
MAX_WORLD_SIZE = 1_000_000  # more devices than any machine has, and few enough to count with
MAX_BATCH = 10**12
_MAX_COUNT = 10**15

OutcomeKind = Literal["ok", "oom", "timeout", "error", "skipped"]
Scalar = bool | int | float | str | None
PHASES = (
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "exposed_comm",
    "straggler_wait",
    "optimizer",
    "other",
)
"""The parts of an update's wall time, in the order in which reports stack them. A whole-step CUDA graph has only
data_wait, step and other; `step` stands for forward to optimizer there."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cause(_Part):
    """Why a case has no result. code None: killed by a time limit, or never started."""

    sentence: str
    rank: int | None = None
    exit_code: int | None = None
    stderr_tail: str = ""


class Identity(_Part):
    """What was run: the keys by which two records are the same work or not. None: not known (published tables)."""

    model: str | None = None
    num_parameters: int | None = Field(None, ge=0, le=_MAX_COUNT)
    img_size: int | None = Field(None, ge=0, le=_MAX_COUNT)
    patch_size: int | None = Field(None, ge=0, le=_MAX_COUNT)
    engine: str | None = None
    zero_stage: int | None = None
    world_size: int = Field(ge=1, le=MAX_WORLD_SIZE)
    nodes: int = Field(1, ge=1, le=MAX_WORLD_SIZE)
    devices_per_node: int | None = None
    device_names: tuple[str, ...] = Field((), description="one per rank, in order; fewer if the source says less")
    device_type: Literal["cpu", "cuda"] | None = None
    precision: str | None = Field(None, description="compute/params/reduce, such as bf16/bf16/bf16")
    compile: bool | None = None
    cuda_graph: bool | None = None
    micro_batch_size: int | None = Field(None, ge=1, le=MAX_BATCH)
    grad_accum_steps: int | None = Field(None, ge=1, le=MAX_BATCH)
    global_batch_size: int | None = Field(None, ge=1, le=MAX_BATCH)
    optimizer: str | None = None
    lr: float | None = Field(None, description="peak, after lr_scaling")
    lr_scaling: str | None = None
    warmup_updates: int | None = Field(None, ge=0, le=_MAX_COUNT)
    data_source: str | None = None
    train_images: int | None = Field(None, ge=0, le=_MAX_COUNT)
    config_hash: str | None = Field(None, description="SHA-256 of the resolved config")


class DeviceState(_Part):
    """One GPU during the measured updates, where NVML tells. Medians over samples; energy is the whole window's."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttled: bool | None = None


class Communication(_Part):
    """What the ranks exchange. bytes_per_update: sent by one rank, in closed form; the rest measured, None if not."""

    bytes_per_update: int | None = None
    formula: str | None = None
    seconds_per_update: float | None = Field(None, description="time in collectives, hidden or not (traced)")
    bus_bandwidth_bytes_per_s: float | None = Field(None, description="of an all-reduce as large as the gradients")


class Attribution(_Part):
    """The partition of wall time over a window; see docs/method.md. Seconds per update, mean over the window.

    method: with the help of a trace; or by the edges of the phases alone, with communication still inside them.
    seconds[phase]: keys of PHASES (or data_wait, step, other); a phase that could not be told is absent and named in
    unknown. by_rank: the same for each rank.
    """

    updates: int | None = Field(description="in the window; None: the source does not say")
    method: Literal["trace", "phases"] = "trace"
    seconds: dict[str, float]
    by_rank: tuple[dict[str, float], ...] = ()
    unknown: dict[str, str] = Field({}, description="phase -> why it is n/a")
    traced_step_time_s: tuple[float, ...] = ()
    idle_s: float | None = Field(None, description="time per update in which the device ran no kernel at all")
    warnings: tuple[str, ...] = ()


class Measurement(_Part):
    """Raw values of one case. Lists of step times are in order; an update's time is that of rank 0's time line."""

    warmup_step_time_s: tuple[float, ...] = ()
    step_time_s: tuple[float, ...] = ()
    images: tuple[int, ...] = Field((), description="images of each counted update, over all ranks")
    losses: tuple[float, ...] = Field((), description="of every update, those of warm-up and trace included")
    data_wait_s: tuple[float, ...] = ()
    peak_allocated_bytes: tuple[int, ...] = Field((), description="by rank; device")
    peak_reserved_bytes: tuple[int, ...] = Field((), description="by rank; device")
    peak_rss_bytes: tuple[int, ...] = Field((), description="by rank; host")
    flops_per_image: float | None = Field(None, description="training, closed form")
    peak_flops: float | None = Field(None, description="of all devices together, the makers' dense figure")
    device_state: tuple[DeviceState, ...] = ()
    communication: Communication = Communication()
    attribution: Attribution | None = None
    attribution_missing: str | None = Field(None, description="why there is none")
    recompiles: int | None = None
    shares: tuple[int, ...] = Field((), description="images of a micro-step by rank, as the run ended")
    skipped_updates: int = 0
    warnings: tuple[str, ...] = ()


class Point(_Part):
    """One evaluation on the way. seconds: training time so far, evaluation, checkpoints and the profiler left out."""

    update: int
    images: int
    seconds: float
    accuracy: float
    loss: float | None = None


class Learning(_Part):
    """Accuracy beside speed. split: what the accuracy was measured on; 'train' is not what people call accuracy."""

    split: Literal["val", "test", "train"]
    points: tuple[Point, ...] = ()
    target: float | None = None
    final_accuracy: float | None = None


class EpochTimes(_Part):
    """What published tables give instead of raw steps."""

    mean_s: float
    min_s: float | None = None
    max_s: float | None = None
    epochs: int | None = None
    includes_warmup: bool | None = Field(None, description="None: the source does not say")


class Record(_Part):
    """One case, one repeat. case: its name, the same for all repeats; axes: the values that make it differ."""

    kind: Literal["case"] = "case"
    schema_version: Literal[1] = 1
    study: str
    study_hash: str | None = Field(None, description="SHA-256 of the study's resolved config")
    mode: Literal["grid", "strong", "weak"] = "grid"
    fixed: Literal["global", "per_device"] | None = Field(None, description="of strong: which batch stays")
    case: str
    axes: dict[str, Scalar] = {}
    repeat: int = 0
    order: int | None = Field(None, description="place in the order in which the study ran its cases")
    outcome: OutcomeKind = "ok"
    cause: Cause | None = None
    seconds: float | None = Field(None, description="of the whole case, start of its processes included")
    started_at: str | None = Field(None, description="UTC, ISO 8601")
    identity: Identity
    measurement: Measurement | None = None
    learning: Learning | None = None
    epoch_times: EpochTimes | None = None
    equal_updates: bool | None = Field(
        None, description="whether the proof of equality covered this engine here; None: not looked at"
    )
    config: dict[str, Any] | None = Field(None, description="the resolved RunConfig")
    environment: dict[str, Any] | None = Field(None, description="as measure.environment describes it")
    source: str = "vitscale"
    notes: tuple[str, ...] = ()
