"""decide: the probabilities of answers, against one forward pass for each spelling."""

import copy
import enum
import math
import random
from collections import defaultdict
from typing import Literal

import pytest
import torch

from structout import GrammarError, StructuredOutputsParams
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.integrations.transformers import decide, generate

WORDS = ["yes", "yes, of course", "no", "nobody", "name", "order", "orders", "street", "été", "1", "10", "11"]


@pytest.fixture(scope="module")
def exact_parts(parts):
    """The model in double precision, in which the order of sums does not show."""
    model, tokenizer = parts
    return copy.deepcopy(model).double(), tokenizer


def log_probabilities(model, token_ids, temperature=1.0):
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids])).logits[0, -1]
    return torch.log_softmax(logits.double() / temperature, 0)


def by_brute_force(model, vocabulary, prompt_ids, answers, temperature):
    """By definition: the probability of each answer over all of its spellings, without
    the constraint and as a constrained draw."""
    whole, drawn = defaultdict(float), defaultdict(float)

    def visit(token_ids, text, log_whole, log_drawn):
        scores = log_probabilities(model, [*prompt_ids, *token_ids], temperature)
        follows = {
            token: text + piece
            for token, piece in enumerate(vocabulary.token_bytes)
            if piece and any(answer.startswith(text + piece) for answer in answers)
        }
        stops = [*vocabulary.stop_token_ids] if text in answers else []
        log_kept = scores[[*follows, *stops]].logsumexp(0)
        for stop in stops:
            whole[text] += math.exp(log_whole + scores[stop])
            drawn[text] += math.exp(log_drawn + scores[stop] - log_kept)
        for token, longer in follows.items():
            visit([*token_ids, token], longer, log_whole + scores[token], log_drawn + scores[token] - log_kept)

    visit([], b"", 0.0, 0.0)
    return whole, drawn


def test_decide_equals_one_forward_pass_for_each_spelling(exact_parts, manager, num_cases):
    model, tokenizer = exact_parts
    rng = random.Random(0)
    for _ in range(num_cases(12, long=1_000)):
        answers = rng.sample(WORDS, rng.randint(1, 4))
        temperature = rng.choice([1.0, 0.5, 2.0])
        prompt_ids = rng.choices(range(3, 300), k=rng.randint(1, 12))
        (decision,) = decide(model, tokenizer, prompt_ids, answers, temperature=temperature, manager=manager)
        encoded = [answer.encode() for answer in answers]
        whole, drawn = by_brute_force(model, manager.vocabulary, prompt_ids, encoded, temperature)
        kept = sum(whole.values())
        assert decision.log_kept == pytest.approx(math.log(kept), abs=1e-9)
        assert sorted(decision.answers) == sorted(answers)
        assert decision.probabilities == sorted(decision.probabilities, reverse=True)
        for answer, probability, share in zip(decision.answers, decision.probabilities, decision.drawn, strict=True):
            assert probability == pytest.approx(whole[answer.encode()] / kept, abs=1e-9)
            assert share == pytest.approx(drawn[answer.encode()], abs=1e-9)


@pytest.fixture
def passes(parts):
    """The number of tokens of each forward pass."""
    model, _ = parts
    lengths = []
    handle = model.register_forward_hook(
        lambda _, __, kwargs, ___: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    yield lengths
    handle.remove()


def test_decide_reads_each_prompt_once(parts, passes):
    decisions = decide(*parts, ["order:", "a longer prompt:"], WORDS)
    assert len(decisions) == len(passes) == 2
    assert decisions[0].probabilities != decisions[1].probabilities


def test_questions_on_one_text_share_a_pass_and_have_the_answers_that_each_has_alone(exact_parts, manager, num_cases):
    model, tokenizer = exact_parts
    rng = random.Random(1)
    for _ in range(num_cases(6, long=100)):
        text = rng.choices(range(3, 300), k=rng.randint(0, 40))
        prompts = [text + rng.choices(range(3, 300), k=rng.randint(1, 30)) for _ in range(rng.randint(1, 6))]
        params = [
            rng.choice([StructuredOutputsParams(choice=rng.sample(WORDS, 2)), StructuredOutputsParams(json=bool)])
            for _ in prompts
        ]
        together = decide(model, tokenizer, prompts, params=params, manager=manager)
        for prompt, each, decision in zip(prompts, params, together, strict=True):
            (alone,) = decide(model, tokenizer, prompt, params=each, manager=manager)
            assert decision.answers == alone.answers
            assert decision.probabilities == pytest.approx(alone.probabilities, abs=1e-9)
            assert decision.drawn == pytest.approx(alone.drawn, abs=1e-9)
            assert decision.log_kept == pytest.approx(alone.log_kept, abs=1e-9)


def test_what_prompts_have_in_common_is_read_once(parts, passes):
    text = [*range(10, 110)]
    decide(*parts, [[*text, 5, 6], [*text, 7], text, [*text, 5, 8, 9]], ["yes"], tokenizations="canonical")
    (answer,) = [len(parts[1]("yes", add_special_tokens=False)["input_ids"])]
    assert passes == [100 + 3 + 2 + 1 + 4 - 1 + 4 * answer]
    passes.clear()
    decide(*parts, [text, text[50:], [*text[:30], *range(200, 260)]], ["yes"])
    assert len(passes) == 3


def test_canonical_tokenizations_are_those_of_the_tokenizer(exact_parts):
    model, tokenizer = exact_parts
    (decision,) = decide(model, tokenizer, "order:", WORDS, tokenizations="canonical")
    prompt_ids = tokenizer("order:")["input_ids"]
    logs = {}
    for word in WORDS:
        token_ids = [*tokenizer(word, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        steps = enumerate(token_ids)
        logs[word] = sum(log_probabilities(model, prompt_ids + token_ids[:i])[token].item() for i, token in steps)
    kept = sum(map(math.exp, logs.values()))
    for word, probability in zip(decision.answers, decision.probabilities, strict=True):
        assert probability == pytest.approx(math.exp(logs[word]) / kept, abs=1e-9)


def test_canonical_tokenization_that_spells_another_text_is_refused(parts, monkeypatch):
    monkeypatch.setattr(CanonicalTokenizer, "encode", lambda *_: None)  # as of a tokenizer that normalizes
    with pytest.raises(ValueError, match="changes 'yes' when it encodes it"):
        decide(*parts, "order:", ["yes"], tokenizations="canonical")


def test_constrained_draws_end_with_the_drawn_shares(parts):
    num_draws = 600
    (decision,) = decide(*parts, "order:", ["yes", "no", "name"])
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 20}
    texts = generate(
        *parts, "order:", choice=["yes", "no", "name"], num_return_sequences=num_draws, fit="off", **sampling
    ).texts
    for answer, share in zip(decision.answers, decision.drawn, strict=True):
        sigma = math.sqrt(share * (1 - share) / num_draws)
        assert abs(texts.count(answer) / num_draws - share) < 5 * sigma  # false alarms: 2e-6 in all


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@pytest.mark.parametrize(
    ("constraint", "answers"),
    [
        ({"choice": Literal["yes", "no"]}, {"yes", "no"}),
        ({"choice": Mood}, {*Mood}),
        ({"json": bool}, {True, False}),
        ({"json": {"type": "integer", "minimum": 1, "maximum": 12}}, {*range(1, 13)}),
    ],
)
def test_answers_are_values_of_the_type(parts, constraint, answers):
    (decision,) = decide(*parts, "order:", **constraint)
    assert {*decision.answers} == answers
    assert decision.answer == decision.answers[0]
    assert sum(decision.probabilities) == pytest.approx(1)
    assert sum(decision.drawn) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"json": {"type": "string"}}, ValueError, "more than max_tokens=512 tokens"),
        ({"choice": WORDS, "max_tokens": 5}, ValueError, "more than max_tokens=5 tokens"),
        ({"choice": WORDS, "temperature": 0.0}, ValueError, "temperature must be above 0"),
        ({"json": bool, "tokenizations": "canonical"}, ValueError, "needs the answers as choice"),
        ({"choice": []}, GrammarError, "choice"),
        ({}, GrammarError, "exactly one"),
        ({"params": [None]}, TypeError, "params must be StructuredOutputsParams"),
        ({"params": []}, ValueError, "params needs one entry for each of the 1 prompts, got 0"),
    ],
)
def test_decide_refuses_what_it_cannot_read(parts, arguments, error, message):
    with pytest.raises(error, match=message):
        decide(*parts, "order:", **arguments)
