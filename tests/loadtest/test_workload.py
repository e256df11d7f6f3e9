"""Requests: reproducible, of the wanted lengths and shares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trtbuild.errors import InputError
from trtbuild.loadtest.arrivals import Bursts, Poisson
from trtbuild.loadtest.lengths import fixed, parse_lengths
from trtbuild.loadtest.prompts import PromptMaker, count_by_words, load_text
from trtbuild.loadtest.shares import SharedPrefix, parse_priorities, parse_shared_prefix
from trtbuild.loadtest.trace import TracedRequest
from trtbuild.loadtest.workload import DEFAULT_SECONDS, PlannedRequest, Workload, WorkloadOptions
from trtbuild.serving.tokenizer import Tokenizer


def workload(**options: object) -> Workload:
    settings: dict[str, object] = {"arrivals": Poisson(10.0), "input_tokens": fixed(20), **options}
    return Workload(WorkloadOptions(**settings), load_text(None), count_by_words)  # type: ignore[arg-type]


def requests(of: Workload) -> list[PlannedRequest]:
    return [of.request(index, arrival, traced) for index, (arrival, traced) in enumerate(of.due())]


def test_the_seed_decides_everything() -> None:
    options = {
        "seconds": 5.0,
        "output_tokens": parse_lengths("uniform:1:99", "--x"),
        "priorities": {1: 0.5, 2: 0.5},
        "cancel_share": 0.5,
    }
    first, same, other = (requests(workload(seed=seed, **options)) for seed in (3, 3, 4))
    assert first == same != other


def test_one_choice_does_not_change_the_others() -> None:
    plain = requests(workload(seconds=5.0))
    longer = requests(workload(seconds=5.0, output_tokens=parse_lengths("lognormal:50:1", "--x"), cancel_share=0.3))
    assert [(r.arrival, r.prompt, r.seed) for r in plain] == [(r.arrival, r.prompt, r.seed) for r in longer]
    more = requests(workload(seconds=9.0))
    assert more[: len(plain)] == plain


def test_shares_are_kept() -> None:
    made = requests(
        workload(requests=4000, input_tokens=fixed(1), priorities={1: 0.2, 2: 0.5, 3: 0.3}, cancel_share=0.1)
    )
    counts = Counter(request.priority for request in made)
    assert {priority: round(count / 4000, 2) for priority, count in counts.items()} == pytest.approx(
        {1: 0.2, 2: 0.5, 3: 0.3},
        abs=0.025,  # three standard errors
    )
    leaving = [request.cancel_after for request in made if request.cancel_after is not None]
    assert abs(len(leaving) / 4000 - 0.1) < 0.015
    assert min(leaving) == 0 and max(leaving) == 63, "of 64 tokens, any but the last"


def test_until_when_requests_come() -> None:
    assert len(workload(requests=7).due()) == 7
    times = [time for time, _ in workload(seconds=2.0).due()]
    assert times == sorted(times) and times[-1] < 2.0
    assert workload().due()[-1][0] < DEFAULT_SECONDS
    assert len(workload(arrivals=Bursts(4, 1.0), seconds=2.5).due()) == 12
    assert len(workload(arrivals=Bursts(4, 1.0), seconds=2.5, requests=5).due()) == 5


def test_a_trace_says_what_it_says_and_the_options_the_rest() -> None:
    trace = (
        TracedRequest(0.0, prompt="as it is", output_tokens=5, priority=3),
        TracedRequest(1.0, prompt_tokens=400, output_tokens=900),
        TracedRequest(2.0, prompt_tokens=30),
    )
    made = requests(workload(arrivals=None, trace=trace, most_input=100, most_output=50, output_tokens=fixed(8)))
    assert [(r.prompt, r.input_tokens, r.output_tokens, r.priority) for r in made[:1]] == [("as it is", None, 5, 3)]
    assert [(r.arrival, r.input_tokens, r.output_tokens, r.priority) for r in made[1:]] == [
        (1, 100, 50, 0),
        (2, 30, 8, 0),
    ]
    assert abs(count_by_words(made[1].prompt) - 100) <= 1, "1.3 tokens a word"


def test_prompts_share_no_beginning_unless_they_are_asked_to() -> None:
    made = requests(workload(requests=50))
    assert len({request.prompt[:8] for request in made}) == 50
    shared = requests(workload(requests=50, shared_prefix=SharedPrefix(40, 3)))
    beginnings = Counter(request.prompt.split("\n\n")[0] for request in shared)
    assert len(beginnings) == 3 and all(abs(count_by_words(text) - 40) <= 1 for text in beginnings)
    assert len({request.prompt for request in shared}) == 50
    assert {request.input_tokens for request in shared} == {60}


def test_prompts_have_exactly_the_tokens_of_a_real_tokenizer(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    maker = PromptMaker(load_text(None), lambda text: len(tokenizer.encode(text)))
    rng = np.random.default_rng(0)
    for tokens in (1, 2, 11, 12, 13, 50, 333, 1000):
        for _ in range(3):
            assert len(tokenizer.encode(maker.make(rng, tokens))) == tokens
    prefix = maker.make(rng, 64)
    # The two line breaks between them are a token.
    assert len(tokenizer.encode(maker.make(rng, 100, prefix))) == 165


def test_prompts_from_a_text_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("un deux trois\n---\nquatre")
    prompt = PromptMaker(load_text(file), count_by_words).make(np.random.default_rng(0), 26)
    assert set(prompt.split()[1:]) - {"the"} == {"un", "deux", "trois", "quatre"}, "the line of --- only divides"
    file.write_text(" \n")
    with pytest.raises(InputError, match="holds no words"):
        load_text(file)


def test_what_says_when_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"arrivals": None}, {"clients": 2}):
        with pytest.raises(InputError, match="one of --rate, --arrivals, --trace and --clients"):
            workload(**options)
    with pytest.raises(InputError, match="No request is due"):
        workload(arrivals=Poisson(0.001), seconds=0.1).due()
    monkeypatch.setattr("trtbuild.loadtest.workload.MOST_PLANNED", 100)
    with pytest.raises(InputError, match="more than 100 requests"):
        workload(arrivals=Poisson(1e6), seconds=60.0).due()


def test_priorities() -> None:
    assert parse_priorities("1=0.2, 2=0.5,3=0.3") == {1: 0.2, 2: 0.5, 3: 0.3}
    for text, wrong in (
        ("1=0.2,2=0.5", "the shares sum to 0.7, and must sum to 1"),
        ("1=0.2,1=0.8", "priority 1 is given twice"),
        ("1", "'1' is not PRIORITY=SHARE"),
        ("high=1", "'high=1' is not PRIORITY=SHARE"),
        ("1=1.5", "'1=1.5' is not"),
        ("1=nan", "'1=nan' is not"),
    ):
        with pytest.raises(InputError, match=f"--priority '{text}': {wrong}"):
            parse_priorities(text)


def test_shared_prefixes() -> None:
    assert parse_shared_prefix("256") == SharedPrefix(256, 1)
    assert parse_shared_prefix("256:4") == SharedPrefix(256, 4)
    for text in ("", "0", "a", "1:2:3", "1:0"):
        with pytest.raises(InputError, match=f"--shared-prefix '{text}' is not TOKENS"):
            parse_shared_prefix(text)
