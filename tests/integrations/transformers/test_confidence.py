"""generate(confidence=True) and generate(select="best"), against the model's own
probabilities."""

import json
import math

import pytest
import torch

from structout import StructuredOutputsParams, decide
from structout.integrations.transformers import generate
from structout.integrations.transformers.confidence import LeafConfidence

SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0}
ORDER = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["tea", "coffee", "tomato juice"]},
        "hot": {"type": "boolean"},
        "cups": {"type": "integer", "minimum": 1, "maximum": 5},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "hot", "cups", "notes"],
    "additionalProperties": False,
}


def take(name: str, count: int) -> None:
    """Take some."""


def leave(name: str) -> None:
    """Leave it."""


def log_softmax(model, prompt_ids, token_ids):
    """The model's log-probabilities in place of each token, ``[k, V]``."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return logits.double().log_softmax(-1)


def masks_of(manager, params, token_ids):
    """The mask in place of each token, bool ``[k, V]``."""
    manager.add_request("masks", params, max_tokens=60)
    manager.wait_ready("masks")
    batch = manager.grammar_bitmask(["masks"], {"masks": list(token_ids[:-1])})
    bits = torch.from_numpy(batch.bitmask.copy()).unsqueeze(-1) >> torch.arange(32) & 1
    manager.finish_request("masks")
    return bits.flatten(1)[:, : manager.vocabulary.size].bool()


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_the_models_probabilities_and_of_the_masks(parts, manager, seed):
    model, tokenizer = parts
    params = StructuredOutputsParams(json=ORDER)
    prompt_ids = tokenizer("an order:")["input_ids"]
    found = generate(
        model, tokenizer, [prompt_ids], params=params, confidence=True, manager=manager, seed=seed,
        max_new_tokens=60, **SAMPLED,
    )  # fmt: skip
    (confidence,), (content,) = found.confidence, found.token_ids
    token_ids = [*content, manager.vocabulary.stop_token_ids[0]]
    scores = log_softmax(model, prompt_ids, token_ids)
    allowed = masks_of(manager, params, token_ids)
    drawn = scores[torch.arange(len(token_ids)), token_ids]
    kept = scores.masked_fill(~allowed, -torch.inf).logsumexp(-1)
    assert confidence.model_logprob == pytest.approx(drawn.sum().item(), abs=1e-3)
    assert confidence.log_kept == pytest.approx(kept.sum().item(), abs=1e-3)
    assert confidence.logprob == pytest.approx((drawn - kept).sum().item(), abs=1e-3)
    values, parsed = confidence.values, found.parsed[0]
    assert list(values) == list(parsed)
    assert [note.value for note in values["notes"]] == parsed["notes"]
    assert {key: values[key].value for key in ("kind", "hot", "cups")} | {"notes": parsed["notes"]} == parsed

    shares = (scores - kept.unsqueeze(1)).masked_fill(~allowed, -torch.inf).exp()
    text = found.texts[0]
    bounds, at = [], 0
    for token in content:
        bounds.append((at, at + len(manager.vocabulary.token_bytes[token])))
        at = bounds[-1][1]
    start = text.index('"hot":') + len('"hot":')
    start += len(text[start:]) - len(text[start:].lstrip())
    end = start + len(json.dumps(parsed["hot"]))
    own = [i for i, (begin, stop) in enumerate(bounds) if begin < end and start < stop]
    hot = values["hot"]
    assert hot.probability == pytest.approx(math.prod(shares[i, content[i]].item() for i in own), rel=1e-3)
    assert hot.log_kept == pytest.approx(sum(kept[i].item() for i in own), abs=1e-3)
    if bounds[own[0]][0] == start:
        assert hot.other is (not parsed["hot"])
        other = json.dumps(hot.other).encode()
        pieces = manager.vocabulary.token_bytes
        fitting = [i for i, piece in enumerate(pieces) if piece and other.startswith(piece[: len(other)])]
        assert hot.other_probability == pytest.approx(shares[own[0], fitting].sum().item(), rel=0.05)


def test_likeliest_other_value_is_another_one_that_the_constraint_allows(parts, manager):
    model, tokenizer = parts
    allowed = {"kind": ORDER["properties"]["kind"]["enum"], "hot": [False, True], "cups": [1, 2, 3, 4, 5]}
    found = generate(
        model, tokenizer, ["order:"], json=ORDER, confidence=True, manager=manager, num_return_sequences=20,
        max_new_tokens=60, **(SAMPLED | {"temperature": 2.0}),
    )  # fmt: skip
    known = 0
    for confidence in found.confidence:
        for key, values in allowed.items():
            leaf = confidence.values[key]
            if leaf.other is not None:
                known += 1
                assert leaf.other in values
                assert leaf.other != leaf.value
                assert 0 < leaf.other_probability <= 1 - leaf.probability + 1e-5
        for note in confidence.values["notes"]:
            assert note.other is None or len(note.other) <= 6
    assert known > 40


def test_choices_have_other_choices_and_expressions_have_none(parts, manager):
    model, tokenizer = parts
    options = {"confidence": True, "manager": manager, "max_new_tokens": 20}
    choice = generate(model, tokenizer, ["yes or no:"], choice=["yes", "no"], **options)
    leaf = choice.confidence[0].values
    assert {leaf.value, leaf.other} == {"yes", "no"}
    assert leaf.probability + leaf.other_probability <= 1 + 1e-5
    for prompt in ("a word:", "x", "y y"):
        leaf = generate(model, tokenizer, [prompt], choice=["order", "orders"], **options).confidence[0].values
        (decision,) = decide(model, tokenizer, prompt, ["order", "orders"], manager=manager)
        drawn = dict(zip(decision.answers, decision.drawn, strict=True))
        assert leaf.probability <= drawn[leaf.value] + 1e-5
        assert leaf.other != leaf.value
        assert leaf.other_probability <= drawn.get(leaf.other, 0) + 1e-5
    regex = generate(model, tokenizer, ["yes or no:"], regex="yes|no", **options).confidence[0].values
    assert (regex.value, regex.other) in (("yes", None), ("no", None))


def test_number_that_may_have_more_digits_is_no_other_value(parts, manager):
    model, tokenizer = parts
    schema = {"enum": [7, 1, 12, 123]}
    found = generate(
        model, tokenizer, ["a number:"], json=schema, confidence=True, manager=manager, num_return_sequences=12,
        max_new_tokens=20, **(SAMPLED | {"temperature": 3.0}),
    )  # fmt: skip
    for confidence in found.confidence:
        leaf = confidence.values
        assert leaf.other in {7, 1, 12, 123, None} - {leaf.value}


@pytest.mark.parametrize("tool_format", ["hermes", "llama", "kimi", "mistral", "qwen_3_coder", "lfm2"])
def test_calls_have_the_confidence_of_their_names_and_arguments(parts, manager, tool_format):
    model, tokenizer = parts
    params = StructuredOutputsParams(tools=[take, leave], tool_choice="required", tool_format=tool_format)
    found = generate(
        model, tokenizer, ["call:"], params=params, confidence=True, manager=manager, num_return_sequences=4,
        max_new_tokens=160, **SAMPLED,
    )  # fmt: skip
    for confidence, calls in zip(found.confidence, found.parsed, strict=True):
        assert [call["name"].value for call in confidence.values] == [call.name for call in calls]
        for values, call in zip(confidence.values, calls, strict=True):
            assert {values["name"].value, values["name"].other} <= {"take", "leave", None}
            arguments = values["arguments"]
            if not isinstance(arguments, LeafConfidence):
                assert tool_format in ("hermes", "llama", "kimi", "mistral")
                arguments = {key: leaf.value for key, leaf in arguments.items()}
                assert arguments == call.arguments
            else:
                assert arguments.value == call.arguments


def test_free_and_cut_off_texts_have_sums(parts, manager):
    model, tokenizer = parts
    params = [None, StructuredOutputsParams(json=ORDER, fit="off")]
    found = generate(
        model, tokenizer, ["free:", "cut:"], params=params, confidence=True, manager=manager, max_new_tokens=4
    )
    free, cut = found.confidence
    assert found.is_complete == [False, False]
    assert (free.log_kept, free.values, cut.values) == (0.0, None, None)
    assert cut.log_kept < 0
    assert free.logprob < 0


@pytest.mark.parametrize("option", [{"jump_forward": "draft"}, {"device_fsm": True}])
def test_confidence_does_not_depend_on_how_the_text_was_decoded(parts, manager, option):
    model, tokenizer = parts
    options = {"regex": "name: [a-c]{3,5}; that is all", "confidence": True, "manager": manager, "do_sample": False}
    plain, other = (generate(model, tokenizer, ["a name:"], **options, **more) for more in ({}, option))
    assert other.token_ids == plain.token_ids
    assert other.confidence == plain.confidence
    assert other.confidence[0].log_kept < 0


def test_without_confidence_there_is_none(parts, manager):
    model, tokenizer = parts
    assert generate(model, tokenizer, ["x"], regex="a", manager=manager).confidence is None


def test_best_is_the_text_to_which_the_model_gives_the_highest_probability(parts, manager):
    model, tokenizer = parts
    options = {"manager": manager, "num_return_sequences": 5, "max_new_tokens": 60, "seed": 3} | SAMPLED
    prompts = ["order:", "another order:"]
    every = generate(model, tokenizer, prompts, json=ORDER, confidence=True, **options)
    best = generate(model, tokenizer, prompts, json=ORDER, confidence=True, select="best", **options)
    for i in range(2):
        likelihoods = [confidence.model_logprob for confidence in every.confidence[5 * i : 5 * i + 5]]
        chosen = 5 * i + likelihoods.index(max(likelihoods))
        assert best.texts[i] == every.texts[chosen]
        assert best.confidence[i] == every.confidence[chosen]
        assert best.usage[i] == every.usage[chosen]
    assert len(best.texts) == len(best.params) == len(best.fitted) == 2


def test_bad_selection_is_refused(parts, manager):
    model, tokenizer = parts
    with pytest.raises(ValueError, match='select must be None, "best" or "resample", got'):
        generate(model, tokenizer, ["x"], regex="a", manager=manager, select="worst")
