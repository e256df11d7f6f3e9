"""Profiles of the plugin form, whose steps are ragged: any mix of prompts and answers is one run."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.engine.profiles import Profile, ProfileSet, Range


@dataclass(frozen=True, slots=True)
class RaggedProfile:
    """`batch` sequences with `tokens` new tokens in all, the longest of which has `kv` positions."""

    name: str
    batch: Range
    tokens: Range
    kv: Range
    logits: Range
    """Of how many tokens logits are wanted, in all."""


def ragged_profiles(profiles: ProfileSet) -> tuple[RaggedProfile, ...]:
    """The same profiles for ragged steps, in the same order.

    One for single tokens stays what it is: fewer sequences, fewer tokens. In any other the prompts share a run with the
    answers of all other slots, so it takes from one token up to its prompts' and one more for each slot. A step of the
    scheduler has at most `prefill_chunk` tokens of prompts and one token of each answer, and a table of pages may be
    wider than a sequence needs; so where the static form covers every step (`check_coverage`), these do.
    """
    return tuple(_ragged(profile, profiles.slots) for profile in profiles.profiles)


def _ragged(profile: Profile, slots: int) -> RaggedProfile:
    if profile.tokens.max == 1:
        return RaggedProfile(profile.name, profile.batch, profile.batch, profile.kv, profile.batch)
    batch = Range(1, max(profile.batch.opt, (slots + 1) // 2), slots)
    prompts = (profile.batch.opt * profile.tokens.opt, profile.batch.max * profile.tokens.max)
    tokens = Range(1, prompts[0] + batch.opt, prompts[1] + batch.max)
    return RaggedProfile(profile.name, batch, tokens, profile.kv, tokens if profile.all_logits else batch)
