"""`vitscale env --probe`: start the ranks, keep the profile, and say what it means for the run.

In: the command's arguments. Out: tables and sentences, or all of it as JSON. Measuring is measure.probe's, arithmetic
estimate's; this parent has no torch, unless an outer launcher made it a rank.
"""

from __future__ import annotations

import json as json_module
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError, RunFailed, VitscaleError
from vitscale.estimate.network import BREAK_EVEN, Forecast
from vitscale.estimate.profile import Profile, Spread, advice_of, forecast_of
from vitscale.estimate.unequal import WORTH, Advice
from vitscale.launch.detect import OuterLaunch, adopt, detect
from vitscale.launch.probe import keep_profile

DEFAULTS = {"cuda": "synthetic-vit-b16", "cpu": "digits"}
TIMEOUT_S = 600.0
BUSY = 0.3  # a step whose repeats lie further apart was measured on a machine that did something else as well


class Asked(NamedTuple):
    """What is probed. given: whether a person named the config, whose loader then counts."""

    config: RunConfig
    decisions: Decisions
    name: str
    device: str
    given: bool


def run_probe(
    source: str | None, overrides: Sequence[str], nproc: int | None, device: str | None, *, json: bool
) -> int:
    """Probe here or in a group of ranks, and print."""
    outer = detect(os.environ)
    if outer is not None and nproc is not None:
        raise ConfigError(
            f"--nproc {nproc} inside {outer.launcher}, which has started {outer.world_size} processes already; leave "
            "--nproc out"
        )
    asked = _ask(source, overrides, outer.world_size if outer else nproc or 1, outer, device)
    if outer is None and not json:
        count = asked.decisions.world_size
        typer.echo(f"probing {count} process(es) on {asked.device} with {asked.name} ...", err=True)
    profile = _here(asked, outer) if outer else _in_group(asked)
    if outer is None or outer.rank == 0:
        _show(asked, profile, json=json)
    return 0


def _ask(
    source: str | None, overrides: Sequence[str], world_size: int, outer: OuterLaunch | None, device: str | None
) -> Asked:
    from vitscale.cli.preflight import check_devices, check_model_and_data
    from vitscale.study.machine import this_machine

    kind = this_machine(device).device_type
    name = source or DEFAULTS[kind]
    config = load_config(name, overrides)
    check_model_and_data(config)
    check_devices(config, device, outer.local_world_size if outer else world_size)
    decisions = decide(config, world_size=world_size, device_type=kind)
    return Asked(config, decisions, name, kind, source is not None)


def _in_group(asked: Asked) -> Profile:
    from vitscale.study.case import Job
    from vitscale.study.runner import run_job

    payload = {
        "config": asked.config.model_dump(mode="json"),
        "name": asked.name,
        "device": asked.device,
        "loader": asked.given,
    }
    job = Job("probe", "vitscale.study.probe_worker", payload, asked.decisions.world_size, TIMEOUT_S)
    with tempfile.TemporaryDirectory(prefix="vitscale-") as folder:
        outcome = run_job(job, Path(folder))
    if outcome.kind != "ok" or outcome.result is None:
        error: VitscaleError = RunFailed(f"the probe failed: {outcome.sentence}")
        error.exit_code = outcome.code or error.exit_code
        raise error
    return Profile.model_validate(outcome.result)


def _here(asked: Asked, outer: OuterLaunch) -> Profile:
    """As a rank of the outer launcher's group."""
    from vitscale.launch.child import watch_launcher

    adopt(outer, os.environ)
    watch_launcher()
    from vitscale.distributed import joined
    from vitscale.study.probe_worker import probe

    with joined(asked.device, group=False) as world:
        return probe(asked.config, asked.name, world, loader=asked.given)


# --- what is said -----------------------------------------------------------------------------------------------------


def _show(asked: Asked, profile: Profile, *, json: bool) -> None:
    kept = keep_profile(profile.model_dump_json(indent=1))
    forecast = forecast_of(profile, asked.config, asked.decisions)
    said = list(sentences(asked, profile, forecast))
    if json:
        typer.echo(json_module.dumps(_as_json(profile, forecast, asked.decisions, said), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows(profile):
        table.add_row(name, value)
    Console(highlight=False).print(table)
    for one in said:
        typer.echo(one)
    if kept is not None:
        typer.echo(f"profile: {kept}")


def _as_json(profile: Profile, forecast: Forecast | None, decisions: Decisions, said: list[str]) -> dict[str, Any]:
    link, batch = profile.link, decisions.batch
    made: dict[str, Any] = {"profile": profile.model_dump(mode="json"), "sentences": said}
    made["link"] = None if link is None else link._asdict()
    made["prediction"] = None
    if forecast is not None:
        told = forecast.predict(batch.micro_batch_size, batch.grad_accum_steps)
        made["prediction"] = {
            "step_s": told.step_s,
            "compute_s": told.compute_s,
            "communication_s": told.communication_s,
            "exposed_s": told.exposed_s,
            "loader_s": told.loader_s,
            "limit": told.limit,
            "micro_batch_size_for_5_percent": forecast.batch_for(),
            "grad_accum_steps_for_5_percent": forecast.accumulation_for(batch.micro_batch_size),
        }
    return made


def rows(profile: Profile) -> Iterator[tuple[str, str]]:
    """Name and figure of everything that was measured: the median, and the least and most of the repeats."""
    for number, rank in enumerate(profile.ranks):
        yield f"rank {number}", f"{rank.device} on {rank.host}"
        for name, rate in rank.matrix_flops.items():
            yield f"  matrix products {name}", _figure(rate, 1e9, "GFLOP/s")
        yield "  copy in memory", _figure(rank.copy_bytes_per_s, 1e9, "GB/s read and written")
        if rank.host_to_device_bytes_per_s:
            yield "  host to device", _figure(rank.host_to_device_bytes_per_s, 1e9, "GB/s")
        for step in rank.steps:
            parts = (("forward", step.forward), ("backward", step.backward), ("optimizer", step.optimizer))
            told = ", ".join(f"{name} {_figure(one, 1e-3, 'ms')}" for name, one in parts)
            yield f"  step of {step.images} images", told
        if rank.loader_images_per_s:
            yield "  loader", _figure(rank.loader_images_per_s, 1, "images/s")
    for one in profile.all_reduce:
        yield f"all-reduce of {_size(one.num_bytes)}", _figure(one.seconds, 1e-3, "ms")
    if profile.link is not None:
        alpha_s, beta, worst = profile.link
        line = f"{1e3 * alpha_s:.3g} ms + bytes / {beta / 1e6:.4g} MB/s, off by {100 * worst:.0f} % at most"
        yield "line through these", line
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in profile.seconds.items())
    yield "took", took


def sentences(asked: Asked, profile: Profile, forecast: Forecast | None) -> Iterator[str]:
    """What will limit the run, and what to do about it."""
    batch, size = asked.decisions.batch, asked.decisions.world_size
    if forecast is None:
        yield "no prediction: what this model sends is not known in closed form, or the network gave no line"
        return
    told = forecast.predict(batch.micro_batch_size, batch.grad_accum_steps)
    rate = batch.global_batch_size / told.step_s
    at_most = "at most " if forecast.traffic.bound else ""
    yield (
        f"predicted: {at_most}{1e3 * told.step_s:.3g} ms per update of {batch.micro_batch_size} x "
        f"{batch.grad_accum_steps} x {size} = {batch.global_batch_size} images, {rate:.4g} images/s; of it computing "
        f"{1e3 * told.compute_s:.3g} ms, communication that backward does not hide {1e3 * told.exposed_s:.3g} ms "
        f"(of {1e3 * told.communication_s:.3g} ms), waiting for the loader {1e3 * told.loader_s:.3g} ms"
    )
    yield f"limit: {_LIMITS[told.limit]}"
    if told.communication_s > 0:
        yield _break_even(forecast, batch.micro_batch_size)
    if forecast.traffic.bound:
        yield "note: this engine hides some of its communication, which is not modelled; take it as an upper bound"
    if (advice := advice_of(profile, asked.config, asked.decisions)) is not None:
        yield _about(advice, profile)
    yield from _doubts(profile)


_LIMITS = {
    "device": "the device, which computes most of the time",
    "host": "the host: starting the work costs more than the work; a larger train.micro_batch_size, "
    "performance.compile or performance.cuda_graph helps",
    "loader": "the loader: more data.workers, or images that are smaller or in memory, help",
    "network": "the network: more train.grad_accum_steps or a larger train.micro_batch_size, and fewer bytes, help",
}


def _break_even(forecast: Forecast, micro_batch: int) -> str:
    share = f"{100 * BREAK_EVEN:g} %"
    ways = []
    if (batch := forecast.batch_for()) is not None:
        ways.append(f"train.micro_batch_size={batch} without accumulation")
    if (accum := forecast.accumulation_for(micro_batch)) is not None:
        ways.append(f"train.grad_accum_steps={accum} at train.micro_batch_size={micro_batch}")
    if not ways:
        return f"communication does not fall under {share} of the step at any batch or accumulation"
    return f"communication falls under {share} of the step from {', or from '.join(ways)} (memory is not looked at)"


def _about(advice: Advice, profile: Profile) -> str:
    if not advice.dropped:
        return "devices: every rank is worth having with equal shares"
    named = ", ".join(f"rank {place} ({profile.ranks[place].device})" for place in sorted(advice.dropped))
    gain, shared = (work.images_per_s / advice.everyone.images_per_s for work in (advice.kept, advice.underfed))
    kept = profile.ranks[advice.kept.places[-1]].cost
    slow = profile.ranks[advice.dropped[-1]].cost
    images = advice.everyone.images[0]
    if kept and slow and slow.micro_step_s(images) < (1 + WORTH) * kept.micro_step_s(images):
        return (
            f"devices: at this batch the network costs more than {named} would bring; {len(advice.kept.places)} alone "
            f"are predicted to train {gain:.3g} times the images/s of all"
        )
    shares = ", ".join(str(images) for images in advice.underfed.images)
    return (
        f"devices: leave out {named}, for which the others wait: the other {len(advice.kept.places)} alone are "
        f"predicted to train {gain:.3g} times the images/s of all in lockstep, all with shares of {shares} images "
        f"{shared:.3g} times"
    )


def _doubts(profile: Profile) -> Iterator[str]:
    widest = max((s.forward.width for rank in profile.ranks for s in rank.steps), default=0.0)
    if widest > BUSY:
        yield (
            f"note: repeats of the model's forward lie {100 * widest:.0f} % apart, so the machine did something else "
            "as well; probe it again when it is quiet"
        )


def _figure(one: Spread, unit: float, name: str) -> str:
    value, least, most = (f"{number / unit:.3g}" for number in (one.value, one.least, one.most))
    return f"{value} {name} ({least} to {most})"


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 2**20 else f"{num_bytes >> 10} KiB"
