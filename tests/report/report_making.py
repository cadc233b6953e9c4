"""Summaries made up for the tests of the report: single cases with defaults, and studies of a simulated machine."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from vitscale.analysis.summary import CaseSummary, Finding, Fit, Interval, ScalingPoint, ScalingSeries, Summary
from vitscale.results.record import Cause, Identity

NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "step_time_s", "images_per_s", "images_per_s_per_device", "mfu", "peak_allocated_bytes", "peak_reserved_bytes",
        "peak_rss_bytes", "bytes_per_image", "attribution", "communication_bytes", "communication_s",
        "bus_bandwidth_bytes_per_s", "joules_per_1000_images", "power_w", "temperature_c", "sm_clock_mhz",
        "epoch_time_s", "accuracy", "accuracy_split", "target", "seconds_to_target", "updates_to_target",
        "images_to_target",
    )
)  # fmt: skip
ENVIRONMENT = {
    "python": "3.11.9",
    "packages": {"vitscale": "0.1.0", "torch": "2.14.1", "timm": "1.0.31", "deepspeed": "0.19.8"},
    "driver": "580.12",
    "devices": [{"name": "NVIDIA H200", "total_bytes": 150 * 2**30, "bf16": "native"}] * 2,
    "cpu": {"model": "AMD EPYC 9654", "cores": 192, "usable_cores": 32},
    "git": {"commit": "0a1b2c3d", "dirty": False},
}


def around(value: float, spread: float | None = 0.01) -> Interval:
    """An interval of +-spread; none for a spread of None."""
    return Interval(value) if spread is None else Interval(value, value * (1 - spread), value * (1 + spread))


def case(
    name: str,
    speed: float | None = 1000.0,
    *,
    engine: str | None = "ddp",
    zero_stage: int | None = None,
    world_size: int = 2,
    repeats: int = 3,
    spread: float | None = 0.01,
    micro: int | None = 64,
    accum: int | None = 1,
    axes: dict[str, Any] | None = None,
    outcomes: dict[Any, int] | None = None,
    causes: tuple[Cause, ...] = (),
    identity: dict[str, Any] | None = None,
    **more: Any,
) -> CaseSummary:
    """One case; speed None: it gave no measurement."""
    measured = {} if speed is None else {
        "step_time_s": around((micro or 64) * (accum or 1) * world_size / speed, spread),
        "images_per_s": around(speed, spread),
        "images_per_s_per_device": speed / world_size,
    }  # fmt: skip
    batch = None if micro is None else micro * (accum or 1) * world_size
    facts: dict[str, Any] = {
        "engine": engine, "zero_stage": zero_stage, "world_size": world_size, "micro_batch_size": micro,
        "grad_accum_steps": accum, "global_batch_size": batch, "device_type": "cuda", "model": "vit_base_patch16_224",
        "img_size": 224, "precision": "bf16/bf16/bf16", "data_source": "synthetic",
        "device_names": ("NVIDIA H200",) * world_size,
    }  # fmt: skip
    return CaseSummary(
        **{
            **NOTHING,
            "name": name,
            "axes": axes if axes is not None else {"engine": engine, "micro_batch_size": micro},
            "identity": Identity(**{**facts, **(identity or {})}),
            "repeats": 0 if speed is None else repeats,
            "outcomes": outcomes or ({"oom": repeats} if speed is None else {"ok": repeats}),
            "causes": causes,
            "updates": 0 if speed is None else 50 * repeats,
            "attribution_unknown": {},
            **measured,
            **more,
        }
    )


def summary(*cases: CaseSummary, **more: Any) -> Summary:
    """A study of these cases."""
    facts: dict[str, Any] = {
        "study": "made up", "mode": "grid", "fixed": None, "axes": ("engine", "micro_batch_size"), "series": (),
        "findings": (), "noise_floor": 0.02, "noise_note": None, "environments": (ENVIRONMENT,),
        "records": sum(sum(c.outcomes.values()) for c in cases), "broken_lines": 0, "proved": True,
    }  # fmt: skip
    return Summary(cases=cases, **{**facts, **more})


def series(
    label: str, cases: list[CaseSummary], mode: Any = "strong", fixed: Any = "global", **more: Any
) -> ScalingSeries:
    """The cases, by world size, beside the first."""
    cases = sorted(cases, key=lambda c: c.identity.world_size)
    points = [_point(c, cases[0]) for c in cases]
    axes = {k: v for k, v in cases[0].axes.items() if k != "world_size"}
    return ScalingSeries(label, axes, mode, fixed, cases[0].name, tuple(points), more.pop("fits", ()), **more)


def _point(c: CaseSummary, first: CaseSummary) -> ScalingPoint:
    assert c.images_per_s is not None
    assert first.images_per_s is not None
    gain = c.images_per_s.value / first.images_per_s.value
    spread = None if c.images_per_s.low is None else 0.014
    devices = c.identity.world_size / first.identity.world_size
    return ScalingPoint(
        c.identity.world_size, c.name, c.images_per_s, around(gain, spread), around(gain / devices, spread)
    )


# --- whole studies ------------------------------------------------------------------------------------------------

ENGINES: tuple[tuple[str, int | None, float, float], ...] = (  # name, stage, speed of one device, serial share
    ("ddp", None, 3400, 0.02),
    ("fsdp2", None, 3250, 0.03),
    ("deepspeed", 0, 2500, 0.03),
    ("deepspeed", 1, 2450, 0.04),
    ("deepspeed", 2, 2490, 0.04),
    ("deepspeed", 3, 1350, 0.08),
)


def scaling_study(counts: tuple[int, ...] = (1, 2, 4, 8), repeats: int = 3) -> Summary:
    """Six engines on 1 to 8 devices, with attribution, memory, curves, failures and findings."""
    luck = random.Random(0)
    cases, found = [], []
    for engine, stage, speed, serial in ENGINES:
        line = []
        for n in counts:
            gain = n / (1 + serial * (n - 1))
            line.append(_simulated(engine, stage, n, speed * gain * luck.gauss(1, 0.004), repeats, luck))
        cases += line
        label = engine if stage is None else f"DeepSpeed ZeRO {stage}"
        curve = tuple((1 + i / 4, (1 + i / 4) / (1 + serial * i / 4)) for i in range(4 * counts[-1] - 3))
        fit = Fit("amdahl", {"p": around(1 - serial, 0.005)}, curve, 1 / serial)
        refused = Fit("usl", refused="four world sizes are too few for two parameters")
        found.append(series(label, line, fits=(fit, refused), limit=_LIMIT))
    cause = Cause(
        sentence="CUDA out of memory: tried to allocate 2.00 GiB", rank=1, exit_code=3, stderr_tail="line\n" * 3
    )
    axes = {"engine": "single", "zero_stage": None, "world_size": 1}
    cases.append(case("single-x1", None, engine="single", world_size=1, axes=axes, causes=(cause,)))
    return summary(
        *cases,
        study="Engines on H200",
        mode="strong",
        fixed="global",
        axes=("engine", "zero_stage", "world_size"),
        series=tuple(found),
        findings=(
            Finding("single-node", "note", "All devices are on one node, so nothing is said of networks."),
            Finding(
                "super-linear",
                "warning",
                "ddp on 2 devices is 2.6 % above proportional, within the noise.",
                ("ddp-x2",),
            ),
        ),
        noise_floor=0.012,
        noise_note="from the repeats of 24 cases",
        environments=(ENVIRONMENT, {**ENVIRONMENT, "driver": "570.01"}),
    )


_LIMIT = "At 8 GPUs 9 % of an update is exposed communication, the largest part that one GPU does not have"


def batch_study() -> Summary:
    """Engines and compile against the batch on one number of devices; the largest batch fits ZeRO 3 alone."""
    luck = random.Random(1)
    cases = []
    for engine, stage, speed, _ in ENGINES:
        for compiled in (False, True):
            for micro in (16, 64, 256, 1024):
                name = f"{engine}{'' if stage is None else stage}-{micro}-{compiled}"
                axes = {"engine": engine, "zero_stage": stage, "micro_batch_size": micro, "compile": compiled}
                identity = {"compile": compiled, "engine": engine}
                fits = micro < 1024 or stage == 3
                memory = int((3 + 0.11 * micro * (0.6 if stage == 3 else 1)) * 2**30)
                rate = 2 * speed * (1.25 if compiled else 1) * micro / (micro + 40) * luck.gauss(1, 0.004)
                cause = Cause(sentence="CUDA out of memory", rank=0, exit_code=3)
                cases.append(
                    case(
                        name, rate if fits else None, engine=engine, zero_stage=stage, micro=micro, axes=axes,
                        identity=identity, causes=() if fits else (cause,),
                        peak_allocated_bytes=memory if fits else None,
                    )
                )  # fmt: skip
    axes_names = ("engine", "zero_stage", "micro_batch_size", "compile")
    return summary(*cases, study="engine-shootout", axes=axes_names, proved=None)


def published_like() -> Summary:
    """Single runs of one engine on 1 to 8 devices, the batch per device fixed, training accuracy, no environment."""
    cases, found = [], []
    for data, batch, first, fall in (("CIFAR-10", 16, 27.5, 0), ("CIFAR-10", 64, 27.4, 1), ("CIFAR-100", 64, 27.6, 1)):
        line = []
        for n in range(1, 9):
            seconds = 50_000 / (first * n * (1 - 0.004 * (n - 1)))
            trained = 0.58 - (0.009 * (n - 1) if fall else -0.01 * n)
            axes = {"data_source": data, "micro_batch_size": batch, "world_size": n}
            identity = {"data_source": data, "precision": None, "device_type": None, "zero_stage": 0,
                        "device_names": ("T4",)}  # fmt: skip
            line.append(
                case(
                    f"{data} {batch} x{n}", 50_000 / seconds, engine="deepspeed", zero_stage=0, world_size=n, repeats=1,
                    spread=None, micro=batch, axes=axes, identity=identity, epoch_time_s=seconds,
                    accuracy_split="train", accuracy=Interval(trained), step_time_s=None,
                )
            )  # fmt: skip
        cases += line
        found.append(series(f"{data}, micro {batch}", line, fixed="per_device"))
    rules = ("single-run", "training-accuracy", "growing-batch", "lr-not-recorded")
    return summary(
        *cases,
        study="published",
        mode="strong",
        fixed="per_device",
        axes=("data_source", "micro_batch_size", "world_size"),
        series=tuple(found),
        findings=tuple(Finding(rule, "warning", f"Something is wrong: {rule}.", (cases[0].name,)) for rule in rules),
        noise_floor=None,
        noise_note="each case ran once",
        environments=(),
        proved=None,
    )


def _simulated(engine: str, stage: int | None, n: int, speed: float, repeats: int, luck: random.Random) -> CaseSummary:
    micro = 256 // n
    update = 256 / speed
    shares = {"data_wait": 0.01, "host_to_device": 0.01, "forward": 0.3, "optimizer": 0.05, "other": 0.02,
              "straggler_wait": 0.01 * (n > 1), "exposed_comm": 0.015 * (n - 1)}  # fmt: skip
    shares["backward"] = 1 - sum(shares.values())
    name = f"{engine}{'' if stage is None else stage}-x{n}"
    spread = 0.008 if repeats > 1 else None
    sharded = {None: 1.0, 0: 1.0, 1: 0.8, 2: 0.7, 3: 0.55}[stage] if n > 1 else 1
    memory = int((4 + 0.1 * micro * sharded + 2 * sharded) * 2**30)
    curves = tuple(_learning(update, luck) for _ in range(repeats))
    return case(
        name, speed, engine=engine, zero_stage=stage, world_size=n, repeats=repeats, spread=spread, micro=micro,
        axes={"engine": engine, "zero_stage": stage, "world_size": n},
        attribution={phase: share * update for phase, share in shares.items()},
        peak_allocated_bytes=memory, peak_reserved_bytes=int(1.1 * memory), mfu=0.45 * speed / 3400 / n,
        accuracy=around(sum(c[-1][3] for c in curves) / repeats, 0.01 if repeats > 1 else None), accuracy_split="test",
        curves=curves, communication_bytes=343 * 2**20, power_w=640.0, joules_per_1000_images=1e3 * 640 * n / speed,
        step_series=tuple(tuple(update * luck.lognormvariate(0, 0.02) for _ in range(200)) for _ in range(repeats)),
    )  # fmt: skip


def _learning(update: float, luck: random.Random) -> tuple[tuple[int, int, float, float], ...]:
    steps = range(0, 2001, 200)
    return tuple((u, 256 * u, u * update, 0.1 + 0.55 * (1 - math.exp(-u / 600)) + luck.gauss(0, 0.006)) for u in steps)


HOSTILE = (
    "</script><script>document.documentElement.dataset.hacked=1</script>",
    "<img src=x onerror=document.documentElement.dataset.hacked=1>",
    "\"><b onmouseover='x'>",
    "../../../tmp/outside",
    "=HYPERLINK(1)",
    "a|b `c` @someone [x](http://example.org) %{x} &amp; \x1b[31m\u202e",
)


def hostile_study() -> Summary:
    """scaling_study with names, causes and environment by somebody who means harm."""
    study = scaling_study(counts=(1, 2))
    renamed = {c.name: f"{HOSTILE[i % len(HOSTILE)]} {i}" for i, c in enumerate(study.cases)}
    cases = tuple(
        replace(c, name=renamed[c.name], axes={**c.axes, "kind": HOSTILE[i % len(HOSTILE)]}, warnings=(HOSTILE[0],))
        for i, c in enumerate(study.cases)
    )
    bad = " ".join(HOSTILE)
    cause = Cause(sentence=bad, stderr_tail=bad + "\n" + bad)
    lost = case(bad, None, engine=HOSTILE[1], axes={"engine": HOSTILE[1], "kind": bad}, causes=(cause,))
    found = tuple(
        replace(s, label=bad, baseline=renamed[s.baseline], limit=bad, axes={**s.axes, "kind": HOSTILE[n % 6]},
                points=tuple(replace(p, case=renamed[p.case]) for p in s.points))
        for n, s in enumerate(study.series)
    )  # fmt: skip
    return replace(
        study, study=bad, axes=(*study.axes, "kind"), cases=(*cases, lost), series=found, noise_note=bad,
        findings=(Finding("rule", "error", bad, (lost.name,)),),
        environments=({bad: {bad: bad}, "packages": {"torch": bad}},),
    )  # fmt: skip
