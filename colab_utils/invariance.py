"""The self-test that a run begins with: do answers depend on how requests are batched here?

Some of the run's own requests are answered one by one, then twice among as many others as the
engine runs at once: from an empty prefix cache, and in the opposite order with the cache as it
is. Token ids are compared. A small batch would prove nothing: a kernel may switch its sums at a
size that only a full one reaches.

Where a run holds answers already, those are compared too: another machine or release, or a compiler
that chose other kernels, may keep answers independent of batching and yet give other ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from colab_utils.engine import AnsweringEngine
from colab_utils.prompts import Prompt

CHOSEN = 16
# Long enough that sums of other batches have met each answer many times, short enough for a
# start: one by one this many steps are done for each chosen request.
TOKENS = 32
# The least compute capability that vLLM's batch-invariant kernels are made for.
LEAST_CAPABILITY = 8.0


@dataclass(frozen=True)
class SelfTest:
    """What was compared and how many of those answers differed; `others` ran beside.

    `committed` of them were compared with the run's own answers, of which `committed_differ` begin
    otherwise.
    """

    mode: str
    chosen: int
    others: int
    tokens: int
    compared: int
    differ: int
    seconds: float
    committed: int = 0
    committed_differ: int = 0

    @property
    def holds(self) -> bool:
        """Whether every answer was the same, and there was something to compare."""
        return self.compared > 0 and self.differ == 0

    def record(self) -> dict[str, Any]:
        """The test as run.json keeps it."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"self-test of mode {self.mode}: {self.differ} of {self.compared} answers differ "
            f"({self.chosen} requests one by one, then among {self.others} others, "
            f"{self.tokens} tokens each, {self.seconds:.0f} s)"
            + (
                f"; {self.committed_differ} of {self.committed} differ from the run's own answers"
                if self.committed
                else ""
            )
        )


def can_be_invariant(gpu: dict[str, Any] | None) -> bool:
    """Whether the device is one that batch-invariant kernels exist for."""
    return gpu is not None and float(str(gpu["compute_capability"])) >= LEAST_CAPABILITY


def self_test(
    engine: AnsweringEngine,
    prompts: Sequence[Prompt],
    *,
    mode: str,
    committed: Mapping[str, Sequence[int]] | None = None,
) -> SelfTest:
    """Compare answers under other batchings on a loaded engine.

    `committed` holds token ids of answers by request; as many of them as run at once are among
    those compared.
    """
    began = time.monotonic()
    committed = committed or {}
    usable = [prompt for prompt in prompts if prompt.rejected is None]
    at_once = min(engine.sequences_at_once(usable, answer_tokens=TOKENS), len(usable))
    known = [prompt for prompt in usable if prompt.request.request_id in committed]
    chosen = spread(known if len(known) >= CHOSEN else usable, min(CHOSEN, at_once))
    ids = {prompt.request.request_id for prompt in chosen}
    others: list[Prompt] = []
    for pool in (known, usable):
        taken = ids | {prompt.request.request_id for prompt in others}
        rest = [prompt for prompt in pool if prompt.request.request_id not in taken]
        others += spread(rest, at_once - len(taken))
    alone: dict[str, list[int]] = {}
    for prompt in chosen:
        engine.reset_prefix_cache()
        alone |= _answer(engine, [prompt])
    engine.reset_prefix_cache()
    first = _answer(engine, [*others[::2], *chosen, *others[1::2]])
    second = _answer(engine, [*chosen, *others][::-1])
    engine.reset_prefix_cache()
    pairs = [(tokens, again[name]) for again in (first, second) for name, tokens in alone.items()]
    pairs += [(first[name], second[name]) for name in first.keys() - ids]
    own = [(first[name], list(committed[name][:TOKENS])) for name in first.keys() & committed]
    return SelfTest(
        mode=mode,
        chosen=len(chosen),
        others=len(others),
        tokens=TOKENS,
        compared=len(pairs),
        differ=sum(left != right for left, right in pairs),
        seconds=round(time.monotonic() - began, 1),
        committed=len(own),
        committed_differ=sum(left != right for left, right in own),
    )


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` of the prompts, evenly spread; all of them when there are fewer."""
    count = min(count, len(prompts))
    return [prompts[number * len(prompts) // count] for number in range(count)]


def _answer(engine: AnsweringEngine, prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """Token ids by request, all prompts given at once."""
    for prompt in prompts:
        engine.add(prompt.request.request_id, prompt.token_ids, max_tokens=TOKENS)
    found = {}
    while engine.in_flight:
        for answer in engine.step():
            found[answer.request_id] = answer.token_ids
    return found
