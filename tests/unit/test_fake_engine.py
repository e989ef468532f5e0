"""The fake engine: right KV gives the oracle's tokens for any cut of the work, and any wrong cell gives others."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, Work, pages_for
from tandem.engine.fake import FakeEngine, reference, reference_tokens
from tandem.engine.memory import PageMemory, PlainMemory
from tandem.engine.model import FAKE_EOS
from tandem.engine.solo import generate
from tandem.ports import Sampled

GREEDY = Sampling()


class Text:
    """One request: what is in the cache so far, and its pages."""

    def __init__(self, prompt: Sequence[int], pages: Sequence[int], sampling: Sampling = GREEDY) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.cached = 0
        self.pages = [PageId(page) for page in pages]
        self.sampling = sampling

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    def row(self, chunk: int, page_size: int) -> Row:
        part = tuple(self.tokens[self.cached : self.cached + chunk])
        end = self.cached + len(part)
        pages = tuple(self.pages[: pages_for(end, page_size)])
        row = Row(Room(RequestId(1), 0), part, self.cached, pages, end == len(self.tokens), self.sampling)
        self.cached = end
        return row


class Ring:
    """Stages one after another, each over its own pages."""

    def __init__(self, cuts: Sequence[int], page_size: int, num_pages: int) -> None:
        self.page_size = page_size
        self.stages = [
            FakeEngine(
                PlainMemory((LayerId(first), LayerId(last)), num_pages, page_size * 16),
                page_size=page_size,
                last=last == cuts[-1],
            )
            for first, last in pairwise(cuts)
        ]
        for stage in self.stages:
            stage.memory.buffer[:] = b"\xa5" * len(stage.memory.buffer)  # pages come back with old bytes in them

    def step(self, texts: Sequence[Text], chunk: int) -> None:
        rows = tuple(text.row(chunk, self.page_size) for text in texts)
        plan = Plan(Tick(0), NO_SLOT, rows, (), (), 0)
        passed = None
        for stage in self.stages[:-1]:
            passed = stage.run(plan, passed, lambda _: None)
            assert isinstance(passed, memoryview)
        sampled = self.stages[-1].run(plan, passed, lambda _: None)
        assert isinstance(sampled, Sampled)
        drawing = [text for text, row in zip(texts, rows, strict=True) if row.samples]
        for text, tokens in zip(drawing, sampled.tokens, strict=True):
            text.tokens += tokens


@st.composite
def cuts_of(draw: st.DrawFn) -> list[int]:
    layers = draw(st.integers(1, 5))
    inner = draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
    return [0, *sorted(inner), layers]


@given(
    cuts=cuts_of(),
    page_size=st.sampled_from([1, 2, 3, 16]),
    prompts=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=40), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=120)
def test_tokens_do_not_depend_on_how_the_work_is_cut(
    cuts: list[int], page_size: int, prompts: list[list[int]], data: st.DataObject
) -> None:
    wanted = 4
    needed = [pages_for(len(prompt) + wanted, page_size) for prompt in prompts]
    numbers = data.draw(st.permutations(range(sum(needed))))
    ring = Ring(cuts, page_size, sum(needed))
    texts = []
    for prompt, count in zip(prompts, needed, strict=True):
        texts.append(Text(prompt, numbers[:count]))
        numbers = numbers[count:]
    while waiting := [text for text in texts if len(text.generated) < wanted]:
        together = waiting[: data.draw(st.integers(1, len(waiting)))]
        ring.step(together, data.draw(st.integers(1, 12)))
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.generated == reference_tokens(prompt, wanted, layers=cuts[-1])


def decode_after(damage: str, layer: int, position: int) -> list[int]:
    """Prefill 11 tokens in 3 layers over pages of 4, hurt one cell, decode one token."""
    ring = Ring([0, 3], 4, 4)
    text = Text(range(60, 71), [2, 0, 3, 1])
    ring.step([text], 11)
    cells = np.frombuffer(ring.stages[0].memory.buffer, np.uint64).reshape(3, 16, 2)
    cell = [2, 0, 3, 1][position // 4] * 4 + position % 4
    match damage:
        case "prefix":
            cells[layer, cell, 0] ^= np.uint64(1 << 40)
        case "value":
            cells[layer, cell, 1] ^= np.uint64(1)
        case "missing":
            cells[layer, cell] = 0
        case "other layer":
            cells[layer, cell] = cells[(layer + 1) % 3, cell]
        case "other position":
            cells[layer, cell] = cells[layer, cell ^ 1]
        case "swapped":
            cells[layer, [cell, cell ^ 1]] = cells[layer, [cell ^ 1, cell]]
        case _:
            assert damage == "none"
    for _ in range(4):
        ring.step([text], 1)
    return text.generated[1:]


@pytest.mark.parametrize("damage", ["prefix", "value", "missing", "other layer", "other position", "swapped"])
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("position", range(11))
def test_one_wrong_cell_changes_the_tokens(damage: str, layer: int, position: int) -> None:
    if position == 10 and damage in ("other position", "swapped"):
        position = 8  # position 11 is not written yet
    right = decode_after("none", 0, 0)
    assert right == reference_tokens(range(60, 71), 5, layers=3)[1:]
    assert decode_after(damage, layer, position) != right


def test_a_chunk_that_read_a_stale_cell_poisons_what_it_wrote() -> None:
    ring = Ring([0, 2], 4, 4)
    text = Text(range(60, 71), [0, 1, 2, 3])
    ring.step([text], 8)
    cells = np.frombuffer(ring.stages[0].memory.buffer, np.uint64).reshape(2, 16, 2)
    right = cells[1, 3].copy()
    cells[1, 3] = 0
    ring.step([text], 2)  # reads the hole, samples nothing
    cells[1, 3] = right
    for _ in range(4):
        ring.step([text], 1)
    assert text.generated != reference_tokens(range(60, 71), 4, layers=2)


def test_cells_beyond_the_text_are_not_read() -> None:
    ring = Ring([0, 2], 4, 4)
    ring.stages[0].memory.buffer[:] = b"\xff" * len(ring.stages[0].memory.buffer)
    text = Text(range(60, 71), [3, 1, 2, 0])
    while len(text.generated) < 4:
        ring.step([text], 3)
    assert text.generated == reference_tokens(range(60, 71), 4, layers=2)


def test_the_wrong_hidden_states_change_the_tokens() -> None:
    prompt = list(range(65, 75))
    found = []
    for flip in (None, 0, 8):
        ring = Ring([0, 1, 2], 4, 4)
        row = Text(prompt, range(4)).row(10, 4)
        plan = Plan(Tick(0), NO_SLOT, (row,), (), (), 0)
        passed = ring.stages[0].run(plan, None, lambda _: None)
        assert isinstance(passed, memoryview)
        hidden = bytearray(passed)
        assert len(hidden) == 10 * FakeEngine.hidden_bytes
        if flip is not None:
            hidden[9 * 16 + flip] ^= 1
        found.append(ring.stages[1].run(plan, memoryview(bytes(hidden)), lambda _: None))
    assert found[0] == Sampled(((reference_tokens(prompt, 1, layers=2)[0],),))
    assert found[1] != found[0] != found[2]


def test_layers_are_reported_when_their_pages_are_written() -> None:
    memory = PageMemory((LayerId(2), LayerId(5)), 2, 4 * 16)
    engine = FakeEngine(memory, page_size=4, last=False)
    row = Row(Room(RequestId(1), 0), (7,), 0, (PageId(1),), False, GREEDY)
    seen: list[int] = []

    def layer_ran(layer: LayerId) -> None:
        assert any(memory.block(layer, PageId(1)))
        assert not any(memory.block(layer, PageId(0)))
        seen.append(layer)

    engine.run(Plan(Tick(0), NO_SLOT, (row,), (), (), 0), memoryview(bytes(range(16))), layer_ran)
    assert seen == [2, 3, 4]


def test_a_page_table_that_is_too_short_is_our_bug() -> None:
    engine = FakeEngine(PlainMemory((LayerId(0), LayerId(1)), 2, 4 * 16), page_size=4, last=True)
    row = Row(Room(RequestId(1), 0), tuple(range(5)), 0, (PageId(1),), True, GREEDY)
    with pytest.raises(AssertionError):
        engine.run(Plan(Tick(0), NO_SLOT, (row,), (), (), 0), None, lambda _: None)


def test_sampling_depends_on_the_seed_alone_when_it_is_hot() -> None:
    def tokens(sampling: Sampling) -> list[int]:
        ring = Ring([0, 2], 4, 8)
        text = Text(b"hello", range(8), sampling)
        while len(text.generated) < 6:
            ring.step([text], 5)
        assert text.generated == reference_tokens(b"hello", 6, layers=2, sampling=sampling)
        return text.generated

    assert tokens(Sampling(0.0, seed=1)) == tokens(Sampling(0.0, seed=2)) == tokens(GREEDY)
    assert tokens(Sampling(0.7, seed=1)) != tokens(Sampling(0.7, seed=2))
    assert tokens(Sampling(0.7, seed=1)) == tokens(Sampling(0.7, seed=1))


LOOKING_BACK = Sampling(presence_penalty=1.0, logprobs=2)
PROMPT = tuple(b"hello")


def sampled(past: tuple[int, ...], generated: int, grammar: str = "", sampling: Sampling = LOOKING_BACK) -> Sampled:
    engine = FakeEngine(PlainMemory((LayerId(0), LayerId(2)), 8, 4 * 16), page_size=4, last=True)
    pages = (PageId(0), PageId(1))
    row = Row(Room(RequestId(1), 1), PROMPT, 0, pages, True, sampling, past, generated, grammar)
    result = engine.run(Plan(Tick(0), NO_SLOT, (row,), (), (), 0), None, lambda _: None)
    assert isinstance(result, Sampled)
    return result


@pytest.mark.parametrize("grammar", ["", '{"type":"object"}'])
def test_what_looks_back_is_drawn_from_the_right_history_only(grammar: str) -> None:
    work = Work(Room(RequestId(1), 1), PROMPT, 1, (), LOOKING_BACK, None, generated=2, grammar=grammar)
    ((token, logprobs),) = reference(work, layers=2)
    assert sampled(PROMPT, 2, grammar) == Sampled(((token,),), (logprobs,))
    wrong = [sampled(PROMPT[::-1], 2, grammar), sampled(PROMPT, 1, grammar), sampled(PROMPT, 2, "{}"), sampled((), 0)]
    assert all(other.tokens != ((token,),) for other in wrong)


def test_who_does_not_look_back_needs_no_history() -> None:
    assert sampled((), 0, sampling=GREEDY) == sampled(PROMPT, 3, sampling=GREEDY)


def test_log_probabilities_tell_which_token_was_drawn_and_where() -> None:
    work = Work(Room(RequestId(1), 1), PROMPT, 200, (), Sampling(logprobs=5), None)
    answer = [(token, logprobs) for token, logprobs in reference(work, layers=2) if logprobs]
    assert len({logprobs.drawn for _, logprobs in answer}) > 150
    for token, logprobs in answer:
        ids, values = zip(*logprobs.likeliest, strict=True)
        assert (ids[0], values[0]) == (token, logprobs.drawn)
        assert len(set(ids)) == 5
        assert sorted(values, reverse=True) == list(values)
        assert logprobs.drawn < 0


def test_tokens_are_printable_and_the_end_comes_now_and_then() -> None:
    found = Counter(reference_tokens(b"once", 4000, layers=1))
    assert set(found) - {FAKE_EOS} <= set(range(32, 127))
    assert len(found) > 90
    assert 40 < found[FAKE_EOS] < 90


def test_solo_generation_stops_where_the_reference_does() -> None:
    engine = FakeEngine(PageMemory((LayerId(0), LayerId(3)), 40, 4 * 16), page_size=4, last=True)
    prompt = tuple(b"a prompt of some length")
    for max_tokens, stop in ((1, ()), (7, ()), (100, (FAKE_EOS, 65, 66))):
        work = Work(Room(RequestId(1), 0), prompt, max_tokens, stop, GREEDY, None)
        expected = reference_tokens(prompt, max_tokens, stop, layers=3)
        for chunk in (1, 5, 512):
            assert list(generate(engine, work, page_size=4, chunk=chunk)) == expected
    assert expected[-1] in (FAKE_EOS, 65, 66)


def test_solo_generation_says_when_the_pool_is_too_small() -> None:
    engine = FakeEngine(PageMemory((LayerId(0), LayerId(1)), 2, 4 * 16), page_size=4, last=True)
    work = Work(Room(RequestId(1), 0), tuple(b"12345"), 5, (), GREEDY, None)
    with pytest.raises(ValueError, match="need 3 pages"):
        list(generate(engine, work, page_size=4))


def test_a_fake_rank_never_imports_torch() -> None:
    code = (
        "import sys; from tandem.engine import fake, model, memory, tokens, solo, load;"
        "load.build_engine(model.read_shape('fake:4'), (1, 3), page_size=4, num_pages=9);"
        "tokens.load_tokenizer('fake:4');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
