"""generate(select="resample"): sequential Monte Carlo against exact distributions."""

import itertools
import random
from collections import Counter

import pytest
import torch

from structout import StructuredOutputsParams, decide
from structout.integrations.transformers import generate, masked_generate
from structout.integrations.transformers.decode import DecodingLoop
from structout.integrations.transformers.population import Population, systematic

# The choices of each set begin alike, so that the first token hides what it leads to.
CHOICES = {
    "pairs": ["an", "at", "bz", "bq", "c~", "ce", "dn"],
    "triples": ["".join(letters) for letters in itertools.product("ax", "ez", "nq")],
    "words": ["order", "orders", "name", "nobody", "yes", "yes, of course"],
}
TEMPERATURE = 20.0  # the random model is too sure of itself
GROUP = 32
SAMPLED = {"do_sample": True, "temperature": TEMPERATURE}
# The upper 1e-4 quantiles of chi-square for 1 to 7 degrees of freedom: the false-alarm
# rate of one test.
CRITICAL = [15.14, 18.42, 21.11, 23.51, 25.74, 27.86, 29.88]


def chi_square(counts, expected):
    """Pearson's statistic over its critical value. Cells below 5 are taken together."""
    cells = [(counts[answer], each) for answer, each in expected.items() if each >= 5]
    rest = [(counts[answer], each) for answer, each in expected.items() if each < 5]
    cells.append((sum(count for count, _ in rest), max(sum(each for _, each in rest), 1.0)))
    statistic = sum((count - each) ** 2 / each for count, each in cells)
    return statistic / CRITICAL[len(cells) - 2]


@pytest.mark.parametrize("name", CHOICES)
def test_resampled_texts_follow_the_conditional_distribution_and_plain_draws_do_not(parts, manager, name, num_cases):
    model, tokenizer = parts
    rng, prompt, choice = random.Random(0), "order:", CHOICES[name]
    (decision,) = decide(model, tokenizer, prompt, choice, temperature=TEMPERATURE, manager=manager)
    num_groups, num_rounds = 50, num_cases(4, long=40)
    exact = dict(zip(decision.answers, decision.probabilities, strict=True))
    expected = {answer: share * num_groups * num_rounds for answer, share in exact.items()}
    ratios = {}
    for select in ("resample", None):
        counts = Counter()
        for seed in range(num_rounds):
            found = generate(
                model, tokenizer, [prompt] * num_groups, choice=choice, select=select, manager=manager, seed=seed,
                num_return_sequences=GROUP if select else 1, top_k=0, **SAMPLED,
            )  # fmt: skip
            size = len(found.texts) // num_groups
            counts.update(found.texts[size * i + rng.randrange(size)] for i in range(num_groups))
        ratios[select] = chi_square(counts, expected)
    assert ratios["resample"] < 1 < ratios[None]


def test_texts_are_valid_complete_and_equal_for_equal_seeds(parts, manager):
    model, tokenizer = parts
    options = {"regex": "[a-d]{2,9}(x|yz)", "select": "resample", "num_return_sequences": 4, "manager": manager}
    first, second, other = (
        generate(model, tokenizer, ["one:", "a second:"], seed=seed, **options, **SAMPLED) for seed in (1, 1, 2)
    )
    assert first.texts == second.texts != other.texts
    assert len(first.texts) == 8
    assert all(first.is_complete)
    assert [text[-1] in "xz" for text in first.texts] == [True] * 8
    assert manager.num_requests == 0


def test_copied_text_goes_on_from_the_keys_and_values_of_its_ancestor(parts, manager, monkeypatch):
    """Every text becomes the first after each step; its later logits are those of a
    model that reads its tokens afresh."""
    model, tokenizer = parts
    compared = 0

    def become_first(self, *, is_last=False):
        for text in self._texts[1:]:
            text.become(self._texts[0])
        return [0] * len(self._texts)

    forward = DecodingLoop._forward

    def compare(self, live):
        nonlocal compared
        logits = forward(self, live)
        for row, i in enumerate(live):
            tokens = [*prompt_ids, *self._texts[i].token_ids]
            with torch.inference_mode():
                expected = model(torch.tensor([tokens])).logits[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-4)
            compared += 1
        return logits

    prompt_ids = tokenizer("order:")["input_ids"]
    monkeypatch.setattr(Population, "resample", become_first)
    monkeypatch.setattr(DecodingLoop, "_forward", compare)
    found = generate(
        model, tokenizer, [prompt_ids], regex="[a-z]{12}", select="resample", num_return_sequences=3, manager=manager,
        **SAMPLED,
    )  # fmt: skip
    assert len(set(found.texts)) == 1
    assert compared > 9


@pytest.mark.parametrize("seed", range(20))
def test_systematic_keeps_what_it_draws_in_place_and_draws_by_weight(seed):
    rng = random.Random(seed)
    weights = [rng.choice([0.0, rng.random(), 5 * rng.random()]) for _ in range(rng.randint(1, 9))]
    weights[rng.randrange(len(weights))] = 1.0
    offsets = [i / 1000 for i in range(1000)]
    counts = Counter()
    for offset in offsets:
        drawn = systematic(weights, offset)
        counts.update(drawn)
        assert len(drawn) == len(weights)
        assert all(drawn[i] == i for i in set(drawn))
    for i, weight in enumerate(weights):
        share = len(weights) * weight / sum(weights)
        assert counts[i] / len(offsets) == pytest.approx(share, abs=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": False}, "resampling needs do_sample=True, without top_k, top_p and min_p"),
        (SAMPLED | {"top_p": 0.9}, "resampling needs do_sample=True, without top_k, top_p and min_p"),
        (SAMPLED | {"top_k": 3}, "resampling needs do_sample=True, without top_k, top_p and min_p"),
        (SAMPLED | {"jump_forward": "draft"}, "resampling goes neither with jump_forward nor"),
        (SAMPLED | {"device_fsm": True}, "resampling goes neither with jump_forward nor"),
        (SAMPLED | {"use_cache": False}, "resampling needs a DynamicCache, got"),
    ],
)
def test_what_has_no_weights_is_refused(parts, manager, options, message):
    model, tokenizer = parts
    with pytest.raises(ValueError, match=message):
        generate(
            model, tokenizer, ["x"], regex="ab?", select="resample", num_return_sequences=2, manager=manager,
            max_new_tokens=5, **options,
        )  # fmt: skip
    assert manager.num_requests == 0


def test_population_that_does_not_divide_the_rows_is_refused(parts, manager):
    model, tokenizer = parts
    for i in range(3):
        manager.add_request(f"r{i}", StructuredOutputsParams(regex="a"))
    ids = torch.tensor([tokenizer("x")["input_ids"]] * 3)
    with pytest.raises(ValueError, match="population=2 does not divide the 3 rows"):
        model.generate(
            ids, custom_generate=masked_generate, manager=manager, request_ids=["r0", "r1", "r2"], population=2,
            max_new_tokens=4, do_sample=True,
        )  # fmt: skip
