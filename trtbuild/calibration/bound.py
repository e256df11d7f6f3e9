"""The fewest bits at which a calibrated model stays within a bound on its KL divergence."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass, replace

from trtbuild.calibration.attempt import Attempt, Calibration, Plan
from trtbuild.calibration.budget import Sensitivity, noise_of, spend
from trtbuild.errors import BuildError
from trtbuild.files import write_json

ATTEMPTS = 5
AIM, NEAR = 0.9, 0.75
"""What is aimed at, and what is near enough, as shares of the bound."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one plan."""

    noise: float
    bits: float
    kl: float


def within(job: Calibration, sensitivities: list[Sensitivity], bound: float) -> Attempt:
    """Calibrate with as few bits as keep the divergence below `bound`, and near it.

    The divergence grows in proportion to the noise that a plan adds, at a rate that the attempts before have shown;
    the first one is the cheapest plan. Raises BuildError where none of ATTEMPTS is within the bound.
    """
    journal = job.folder / "attempts.json"
    done = [Tried(**entry) for entry in json.loads(journal.read_text())["tried"]] if journal.exists() else []
    tried: list[Tried] = []
    best: tuple[Tried, Plan, str] | None = None
    made: dict[str, Attempt] = {}
    plan: Plan = spend(sensitivities, noise=math.inf)
    for number in range(ATTEMPTS):
        name = f"attempt-{number}"
        if number < len(done):
            now = done[number]
        else:
            made[name] = job.attempt(plan, name)
            now = Tried(noise_of(sensitivities, plan), made[name].bits, job.divergence(made[name]))
            write_json(journal, {"tried": [asdict(each) for each in (*tried, now)]})
        tried.append(now)
        superseded = name
        if now.kl <= bound and (best is None or now.bits < best[0].bits):
            superseded = best[2] if best else ""
            best = now, plan, name
        if superseded:
            shutil.rmtree(job.folder / superseded, ignore_errors=True)
        if now.kl <= bound and (number == 0 or now.kl >= NEAR * bound):
            break
        following = spend(sensitivities, noise=AIM * bound * now.noise / max(now.kl, 1e-12))
        if following == plan or not following:
            break
        plan = following
    if best is None:
        least = min(tried, key=lambda each: each.kl)
        raise BuildError(
            f"No plan keeps the KL divergence below {bound:g}: of {len(tried)}, the nearest has {least.kl:.4f} at "
            f"{least.bits:.2f} bits a weight. Give a larger --max-kl, or more calibration text."
        )
    found, plan, name = best
    return replace(made.get(name) or job.attempt(plan, name), kl=found.kl)
