"""Verdict sentences on speed: which engine and batch, and whether DeepSpeed is needed. Differences come from claims.

Only cases of one set-up (model, resolution, data, precision, kind of device) and one number of devices are set beside
each other; a study of several set-ups gets a sentence for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from vitscale.analysis.summary import CaseSummary, Summary
from vitscale.report import words
from vitscale.report.claims import Claim, Statement, compare_speed

_MOST_SETUPS = 3


def leader(finished: list[CaseSummary]) -> CaseSummary:
    """The case that the verdict is built around: the fastest of the first set-up."""
    return max(_peer_groups(finished)[0], key=images_per_s)


def fastest(finished: list[CaseSummary], summary: Summary) -> list[Statement]:
    """Which engine is fastest, each at its best batch, for up to three set-ups."""
    groups = _peer_groups(finished)
    made = []
    for group in groups[:_MOST_SETUPS]:
        where = setup_words(group[0], [other[0] for other in groups])
        text = _ranking(group, summary)
        unsaid = ", ".join(word for word in where if word not in text)
        topic = "Fastest" if len(group) > 1 else "Speed"
        made.append(Statement(topic, f"{unsaid}: {text}" if unsaid else text))
    if len(groups) > _MOST_SETUPS:
        rest = len(groups) - _MOST_SETUPS
        made.append(Statement("Fastest", f"{words.plural(rest, 'more set-up')}: see the figures and the table."))
    return made


def batch(finished: list[CaseSummary], summary: Summary) -> list[Statement]:
    """The smallest batch (or accumulation) above which no gain is shown, for the leading engine."""
    best = leader(finished)
    peers = [case for case in _peer_groups(finished)[0] if words.engine(case.identity) == words.engine(best.identity)]
    made = []
    for axis in words.batch_axes(summary):
        found = _best_by_value(peers, axis)
        if len(found) > 1:
            topic = "Accumulation" if axis == "grad_accum_steps" else "Batch"
            made.append(Statement(topic, _enough(found, axis, summary)))
    return made


def deepspeed(summary: Summary) -> list[Statement]:
    """Whether DeepSpeed is needed at all: for speed, and to fit."""
    ours = [case for case in summary.cases if _is_deepspeed(case)]
    others = [case for case in summary.cases if case.identity.engine and not _is_deepspeed(case)]
    if not ours:
        return []
    if not others:
        return [Statement("DeepSpeed", "Only DeepSpeed was measured, so this study cannot say whether it is needed.")]
    needed = _needed_to_fit(ours, others)
    fit = [Statement("DeepSpeed", needed)] if needed else []
    groups = _peer_groups([case for case in (*ours, *others) if case.images_per_s])
    for group in groups:
        mine = [case for case in group if _is_deepspeed(case)]
        theirs = [case for case in group if not _is_deepspeed(case)]
        if mine and theirs:
            rivals = len(_variants(group)) - 1
            text = _needed_for_speed(max(mine, key=images_per_s), max(theirs, key=images_per_s), rivals, summary)
            return [*fit, Statement("DeepSpeed", text + _memory_saved(mine, theirs))]
    return fit or [
        Statement("DeepSpeed", "No case of DeepSpeed stands beside a case of another engine on as many devices.")
    ]


# --- which cases stand beside each other ---------------------------------------------------------------------------


def images_per_s(case: CaseSummary) -> float:
    """The figure alone, of a case that has one."""
    assert case.images_per_s is not None
    return case.images_per_s.value


def setup(case: CaseSummary) -> tuple[Any, ...]:
    """What must be the same for two cases' speeds to stand beside each other."""
    i = case.identity
    mode = case.axes.get("mode")  # of imported tables, which hold several
    return i.model, i.img_size, i.patch_size, i.data_source, i.precision, i.device_names[:1], i.device_type, mode


def _peer_groups(finished: list[CaseSummary]) -> list[list[CaseSummary]]:
    """Per set-up, largest first, the cases on the same devices: where most engines meet, else the most devices."""
    setups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[CaseSummary]]] = defaultdict(lambda: defaultdict(list))
    sizes: dict[tuple[Any, ...], int] = defaultdict(int)
    for case in finished:
        i = case.identity
        setups[setup(case)][i.world_size, i.nodes, tuple(sorted(set(i.device_names)))].append(case)
        sizes[setup(case)] += 1
    chosen = [
        (sizes[key], max(counts.values(), key=lambda group: (len(_variants(group)), group[0].identity.world_size)))
        for key, counts in setups.items()
    ]
    return [group for _, group in sorted(chosen, key=lambda pair: (-pair[0], -len(pair[1])))]


def _variants(cases: Iterable[CaseSummary]) -> dict[str, CaseSummary]:
    """engine -> its fastest case."""
    best: dict[str, CaseSummary] = {}
    for case in cases:
        name = words.engine(case.identity)
        if name not in best or images_per_s(case) > images_per_s(best[name]):
            best[name] = case
    return best


def setup_words(case: CaseSummary, firsts: list[CaseSummary]) -> list[str]:
    """What sets this set-up apart from the others: '224 px', 'bf16/bf16/bf16'."""
    mine, all_setups = setup(case), [setup(other) for other in firsts]
    names = ("{}", "{} px", "patch {}", "{}", "{}", "{}", "{}", "{}")
    parts = []
    for index, name in enumerate(names):
        value = mine[index]
        if value and len({other[index] for other in all_setups}) > 1:
            parts.append(name.format(words.clean(value[0] if isinstance(value, tuple) else value)))
    return parts


# --- sentences ----------------------------------------------------------------------------------------------------


def _name(case: CaseSummary, summary: Summary) -> str:
    return words.in_sentence(case, summary)


def _ranking(group: list[CaseSummary], summary: Summary) -> str:
    best = max(group, key=images_per_s)
    where = f"on {words.devices(best.identity)}"
    speed = f"{words.whole(images_per_s(best))} images/s"
    variants = _variants(group)
    rivals = [case for case in variants.values() if case is not best] or [case for case in group if case is not best]
    if not rivals:
        return f"{_name(best, summary)} trains {words.interval(best.images_per_s)} images/s {where}."
    rivals.sort(key=images_per_s, reverse=True)
    claims = [compare_speed(best, rival, summary.noise_floor, len(rivals)) for rival in rivals]
    at_best = _at_best(group) if len(variants) > 1 and len(group) > len(variants) else ""
    if all(claim.answer == "more" for claim in claims):
        ahead = f"{_excess(claims[0])} ahead of {_name(rivals[0], summary)}"
        return f"{_name(best, summary)} is the fastest {where}{at_best}: {speed}, {ahead}."
    if not claims[0].judged:
        return (
            f"{_name(best, summary)} has the highest figure {where}{at_best}: {speed}. {_unjudged(best, rivals[0])}, "
            f"so it is not shown to be faster than the next, {_with_speed(rivals[0], summary)}."
        )
    return _tie(best, rivals, claims, where + at_best, summary)


def _at_best(group: list[CaseSummary]) -> str:
    batches = {(case.identity.micro_batch_size, case.identity.grad_accum_steps) for case in group}
    return ", each engine at its best batch" if len(batches) > 1 else ", each engine at its best"


def _tie(best: CaseSummary, rivals: list[CaseSummary], claims: list[Claim], where: str, summary: Summary) -> str:
    tied = [rival for rival, claim in zip(rivals, claims, strict=True) if claim.answer != "more"]
    names = [_with_speed(case, summary) for case in (best, *tied)]
    text = f"Between {words.listing(names)} no difference is shown {where}"
    beaten = [(rival, claim) for rival, claim in zip(rivals, claims, strict=True) if claim.answer == "more"]
    if not beaten:
        return f"{text}, so speed gives no reason to choose."
    next_best, claim = beaten[0]
    return (
        f"{text}; they are the fastest, {_name(best, summary)} {_excess(claim)} ahead of {_name(next_best, summary)}."
    )


def _with_speed(case: CaseSummary, summary: Summary) -> str:
    return f"{_name(case, summary)} ({words.whole(images_per_s(case))} images/s)"


def _excess(claim: Claim) -> str:
    """'47 % (45 to 49 %)'."""
    value, low, high = claim.ratio
    if low is None or high is None:
        return words.percent(value - 1)
    return words.percent_between(value - 1, low - 1, high - 1)


def _unjudged(a: CaseSummary, b: CaseSummary) -> str:
    """Why two cases were not judged, as the beginning of a sentence."""
    if min(a.repeats, b.repeats) >= 2:
        return "There is no noise floor"
    return "Each case ran once" if max(a.repeats, b.repeats) < 2 else "One of the two ran once"


def _best_by_value(cases: list[CaseSummary], axis: str) -> dict[int, CaseSummary]:
    found: dict[int, CaseSummary] = {}
    for case in cases:
        value = getattr(case.identity, axis)
        if value is not None and (value not in found or images_per_s(case) > images_per_s(found[value])):
            found[value] = case
    return dict(sorted(found.items()))


def _enough(found: dict[int, CaseSummary], axis: str, summary: Summary) -> str:
    top, best = max(found.items(), key=lambda item: images_per_s(item[1]))
    engine = words.engine(best.identity)
    of = f" of {engine}" if engine else ""
    claims = {
        value: compare_speed(best, case, summary.noise_floor, len(found) - 1)
        for value, case in found.items()
        if case is not best
    }
    alike = [value for value, claim in claims.items() if claim.answer != "more"]
    if not all(claim.judged for claim in claims.values()):
        unjudged = next(found[value] for value, claim in claims.items() if not claim.judged)
        why = _unjudged(best, unjudged)
        text = f"The highest figure{of} is at {axis} {top} ({words.whole(images_per_s(best))} images/s). {why}, "
        text += "so no gain is shown."
    elif alike:
        whom = f" for {engine}" if engine else ""
        text = f"Above {axis} {min(top, *alike)} no gain is shown{whom}, up to {max(found)}."
    else:
        beside = max((value for value in claims if value < top), default=min(claims))
        text = f"{axis} {top} is the best{of}: {_excess(claims[beside])} more images/s than {beside}."
    if len({case.identity.global_batch_size for case in found.values()}) > 1:
        text += " This is speed alone: global_batch_size differs, so the training does too."
    return text


# --- DeepSpeed ----------------------------------------------------------------------------------------------------


def _is_deepspeed(case: CaseSummary) -> bool:
    return case.identity.engine == "deepspeed"


def _needed_to_fit(ours: list[CaseSummary], others: list[CaseSummary]) -> str | None:
    """A sentence if a batch ran with DeepSpeed alone, all others being out of memory there."""

    def cell(case: CaseSummary) -> tuple[Any, ...]:
        i = case.identity
        return i.model, i.img_size, i.precision, i.world_size, i.device_names[:1], i.micro_batch_size

    ran: dict[tuple[Any, ...], list[CaseSummary]] = defaultdict(list)
    for case in ours:
        if case.repeats:
            ran[cell(case)].append(case)
    out: dict[tuple[Any, ...], list[CaseSummary]] = defaultdict(list)
    for case in others:
        out[cell(case)].append(case)
    for key, tried in out.items():
        if key in ran and all(case.repeats == 0 and case.outcomes.get("oom") for case in tried):
            lost, kept = (_engines(cases) for cases in (tried, ran[key]))
            i = ran[key][0].identity
            where = f"micro_batch_size {i.micro_batch_size} on {words.devices(i)}"
            sharded = any(case.identity.engine == "fsdp2" for case in tried)
            claim = "DeepSpeed is needed to fit" if sharded else "Of the engines tried, only DeepSpeed fits"
            unsaid = "" if sharded else "; fsdp2, which shards as well, was not tried"
            return f"{claim} {where}: {lost} ran out of memory there, {kept} did not{unsaid}."
    return None


def _engines(cases: list[CaseSummary]) -> str:
    ordered = sorted(cases, key=lambda case: words.engine_order(case.identity))
    return words.listing(list(dict.fromkeys(words.engine(case.identity) for case in ordered)))


def _needed_for_speed(mine: CaseSummary, theirs: CaseSummary, rivals: int, summary: Summary) -> str:
    claim = compare_speed(mine, theirs, summary.noise_floor, rivals)
    a, b = words.engine(mine.identity), words.engine(theirs.identity)
    where = f"on {words.devices(mine.identity)}"
    if claim.answer == "more":
        return f"DeepSpeed pays {where}: its best, {a}, trains {_excess(claim)} more images/s than {b}."
    if claim.answer == "less":
        back = compare_speed(theirs, mine, summary.noise_floor, rivals)
        return (
            f"DeepSpeed is not needed for speed {where}: {b} trains {_excess(back)} more images/s than its best, {a}."
        )
    if claim.answer == "not shown":
        return f"Speed gives no reason for DeepSpeed {where}: between its best, {a}, and {b} no difference is shown."
    return (
        f"{_unjudged(mine, theirs)}, so whether DeepSpeed is needed for speed is not shown: its best, {a}, has "
        f"{words.whole(images_per_s(mine))} images/s and {b} {words.whole(images_per_s(theirs))} {where}."
    )


def _memory_saved(mine: list[CaseSummary], theirs: list[CaseSummary]) -> str:
    """Behind the sentence on speed: what DeepSpeed saves in device memory at the largest batch that both ran."""
    sizes = {c.identity.micro_batch_size for c in mine if c.peak_allocated_bytes}
    both = sizes & {c.identity.micro_batch_size for c in theirs if c.peak_allocated_bytes} - {None}
    if not both:
        return ""
    size = max(value for value in both if value is not None)
    a, b = (
        min((c for c in cases if c.identity.micro_batch_size == size and c.peak_allocated_bytes), key=_peak)
        for cases in (mine, theirs)
    )
    if _peak(a) > 0.95 * _peak(b):
        return f" It saves no memory: at micro_batch_size {size} {_uses(b)}, {_uses(a)}."
    return f" It saves memory: at micro_batch_size {size} {_uses(a)}, {_uses(b)}."


def _peak(case: CaseSummary) -> int:
    return case.peak_allocated_bytes or 0


def _uses(case: CaseSummary) -> str:
    return f"{words.engine(case.identity)} peaks at {words.gib(_peak(case))} GiB"
