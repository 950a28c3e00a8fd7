"""StructuredLogitsProcessor under transformers' own decoding loops."""

import gc
import json
import re

import jsonschema
import pytest
import torch
from transformers import pipeline

from structout import GrammarError, StructuredOutputsParams, UnknownRequestError
from structout.integrations.transformers import StructuredLogitsProcessor, generate
from structout.integrations.transformers.constrained_sampler import DeadEndError

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = ["order:", "an order of a rather long prompt:"]
LETTERS = "[a-z]{5,9}(, [a-z]{5,9}){1,2}"


def inputs(parts, prompts):
    return parts[1](prompts, return_tensors="pt", padding=True, padding_side="left")


def texts_of(parts, prompt, ids):
    return parts[1].batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def run(parts, processor, prompts=PROMPTS, **options):
    prompt = inputs(parts, prompts)
    ids = parts[0].generate(**prompt, logits_processor=[processor], **{"max_new_tokens": 60} | options)
    return texts_of(parts, prompt, ids)


def check_valid(texts):
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_processor_gives_the_greedy_texts_of_generate(parts, manager):
    processor = StructuredLogitsProcessor(manager=manager, json=SCHEMA)
    expected = generate(*parts, PROMPTS, json=SCHEMA, manager=manager, do_sample=False, max_new_tokens=60).texts
    assert run(parts, processor, do_sample=False) == expected
    check_valid(expected)


def test_processor_with_a_tokenizer_makes_its_manager_in_the_first_call(parts):
    torch.manual_seed(0)
    processor = StructuredLogitsProcessor(parts[1], json=SCHEMA)
    check_valid(run(parts, processor, PROMPTS * 3, do_sample=True, max_new_tokens=120))


def test_processor_is_reused_by_later_calls_and_other_batches(parts, manager):
    processor = StructuredLogitsProcessor(manager=manager, regex=LETTERS)
    for prompts in (PROMPTS, PROMPTS, PROMPTS[:1], PROMPTS[1:], PROMPTS * 2):
        fresh = StructuredLogitsProcessor(manager=manager, regex=LETTERS)
        texts = run(parts, processor, prompts, do_sample=False)
        assert texts == run(parts, fresh, prompts, do_sample=False)
        assert all(re.fullmatch(LETTERS, text) for text in texts)


def test_processor_begins_anew_where_a_prompt_contains_the_last_one_and_more(parts, manager):
    """Also where it contains the last text, or was cut after its first token."""
    processor = StructuredLogitsProcessor(manager=manager, regex=LETTERS)
    first = run(parts, processor, ["order:"], do_sample=False, max_new_tokens=5)[0]
    for prompt in ("order: A", "order: AB CD", f"order:{first} and then", "order:"):
        assert re.fullmatch(LETTERS, run(parts, processor, [prompt], do_sample=False)[0])


@pytest.mark.parametrize(
    "constraint", [{"json": SCHEMA}, {"regex": LETTERS}, {"choice": ["yes", "no", "never", "nay"]}]
)
@pytest.mark.parametrize("num_beams", [2, 4])
def test_processor_with_beams_gives_valid_texts_in_the_order_of_their_scores(parts, manager, constraint, num_beams):
    """Beams fork and die at almost every step. A brute force over all choices knows the
    best ones."""
    processor = StructuredLogitsProcessor(manager=manager, **constraint)
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "do_sample": False, "length_penalty": 0.0}
    texts = run(parts, processor, **options)
    assert len(texts) == 2 * num_beams
    for text in texts:
        if "json" in constraint:
            check_valid([text])
        elif "regex" in constraint:
            assert re.fullmatch(LETTERS, text)
        else:
            assert text in constraint["choice"]
    if "choice" in constraint and num_beams == 4:
        assert [sorted(texts[:4]), sorted(texts[4:])] == [sorted(constraint["choice"])] * 2


def test_processor_with_beams_scores_as_unmasked_log_probabilities_would(parts, manager):
    """The best of all four choices, found by scoring each of them."""
    model, tokenizer = parts
    choices = ["yes", "no", "never", "nay"]
    processor = StructuredLogitsProcessor(manager=manager, choice=choices)
    best = run(parts, processor, ["order:"], num_beams=4, do_sample=False, length_penalty=0.0)[0]

    def spellings(text):  # all ways to write it
        pieces = manager.vocabulary.token_bytes
        if not text:
            return [[]]
        starts = [i for i, piece in enumerate(pieces) if piece and text.startswith(piece)]
        return [[i, *rest] for i in starts for rest in spellings(text[len(pieces[i]) :])]

    def score(tokens):
        ids = [*tokenizer("order:")["input_ids"], *tokens, tokenizer.eos_token_id]
        logprobs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        new = ids[-1 - len(tokens) :]
        return float(logprobs[-len(new) :].gather(1, torch.tensor(new)[:, None]).sum())

    with torch.inference_mode():
        scores = {choice: max(map(score, spellings(choice.encode()))) for choice in choices}
    assert best == max(scores, key=scores.get)


def test_processor_follows_forks_of_the_callers_requests(parts, manager):
    manager.add_request("a", StructuredOutputsParams(json=SCHEMA))
    manager.add_request("b", StructuredOutputsParams(choice=["yes", "no"]))
    processor = StructuredLogitsProcessor(manager=manager, request_ids=["a", None, "b"])
    for _ in range(2):
        for options in ({"num_return_sequences": 2, "do_sample": True}, {"num_beams": 2, "do_sample": False}):
            texts = run(parts, processor, ["order:"] * 3, **options)
            copies = len(texts) // 3
            check_valid(texts[:copies])
            assert set(texts[2 * copies :]) <= {"yes", "no"}
    assert (manager.num_tokens("a"), manager.num_tokens("b")) == (0, 0)
    processor.reset()
    assert manager.num_requests == 2


def test_processor_with_assisted_generation_follows_rejected_candidates(parts, manager):
    processor = StructuredLogitsProcessor(manager=manager, json=SCHEMA)
    prompt = ['{"name": "Ada", "age": 3} {"name": "Al', *PROMPTS]
    for text in prompt:
        plain = run(parts, processor, [text], do_sample=False)
        check_valid(plain)
        assert run(parts, processor, [text], do_sample=False, prompt_lookup_num_tokens=4) == plain


def test_processor_serves_pipelines(parts, manager):
    model, tokenizer = parts
    processor = StructuredLogitsProcessor(manager=manager, json=SCHEMA)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    options = {"logits_processor": [processor], "do_sample": False, "max_new_tokens": 60, "return_full_text": False}
    results = pipe(PROMPTS * 2, batch_size=2, **options)
    check_valid([result["generated_text"] for (result,) in results])


def test_processor_beside_stop_strings_leaves_ended_rows_alone(parts, manager):
    processor = StructuredLogitsProcessor(manager=manager, regex="[ab]{1,30}")
    texts = run(parts, processor, PROMPTS, do_sample=True, stop_strings=["b"], tokenizer=parts[1])
    assert all(re.fullmatch("a{0,29}b|a{1,30}", text) or "b" in text for text in texts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_processor_returns_new_scores(manager, dtype):
    processor = StructuredLogitsProcessor(manager=manager, choice=["yes"])
    scores = torch.randn(2, 1024).to(dtype)
    before = scores.clone()
    masked = processor(torch.tensor([[5], [5]]), scores)
    assert torch.equal(scores, before)
    is_allowed = masked != float("-inf")
    assert torch.equal(masked[is_allowed], scores[is_allowed])
    assert 0 < int(is_allowed.sum()) < 10


def test_processor_allows_only_stop_tokens_after_the_end(manager):
    stop = manager.vocabulary.stop_token_ids[0]
    processor = StructuredLogitsProcessor(manager=manager, choice=["yes", "no"])
    ids = torch.tensor([[5], [5]])
    processor(ids, torch.zeros(2, 1024))
    illegal = manager.vocabulary.spell("z")
    after = processor(torch.cat([ids, torch.tensor([manager.vocabulary.spell("n"), illegal])], 1), torch.zeros(2, 1024))
    assert (after[1] != float("-inf")).nonzero().flatten().tolist() == [stop]
    assert (after[0] != float("-inf")).nonzero().flatten().tolist() == manager.vocabulary.spell("o")


def test_processor_frees_its_requests_when_collected_reset_or_failed(parts, manager):
    processor = StructuredLogitsProcessor(manager=manager, json=SCHEMA)
    run(parts, processor, do_sample=False, max_new_tokens=3)
    assert manager.num_requests == 2
    processor.reset()
    assert manager.num_requests == 0
    run(parts, processor, do_sample=False, max_new_tokens=3)
    del processor
    gc.collect()
    assert manager.num_requests == 0
    broken = StructuredLogitsProcessor(manager=manager, regex="(")
    with pytest.raises(GrammarError, match=r"a \( is not closed"):
        run(parts, broken)
    assert manager.num_requests == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"json": {}}, ValueError, "expected a tokenizer or a manager"),
        ({"tokenizer": True}, ValueError, "expected one of a constraint, params and request_ids"),
        ({"tokenizer": True, "json": {}, "request_ids": ["a"]}, ValueError, "expected one of a constraint"),
        ({"tokenizer": True, "request_ids": ["a"]}, ValueError, "request_ids need the manager that has them"),
        ({"tokenizer": True, "manager": True, "json": {}}, ValueError, "a tokenizer or a manager, and not both"),
        ({"manager": True, "request_ids": ["a"], "key_order": "any"}, ValueError, "key_order goes with json"),
        ({"tokenizer": True, "regex": "a", "key_order": "any"}, GrammarError, "key_order applies to json, grammars"),
        ({"tokenizer": True, "json": "{"}, GrammarError, "is not JSON"),
        ({"tokenizer": True, "json": {}, "regex": "a"}, GrammarError, "got json, regex"),
    ],
)
def test_processor_refuses_arguments_that_do_not_go_together(parts, manager, arguments, error, message):
    real = {"tokenizer": parts[1], "manager": manager}
    with pytest.raises(error, match=message):
        StructuredLogitsProcessor(**{name: real.get(name, value) for name, value in arguments.items()})


def test_processor_refuses_scores_and_batches_that_do_not_fit(manager):
    processor = StructuredLogitsProcessor(manager=manager, choice=["yes"])
    with pytest.raises(ValueError, match="the scores have 1000 columns, but the manager was made for vocab_size=1024"):
        processor(torch.tensor([[5]]), torch.zeros(1, 1000))
    manager.add_request("a", StructuredOutputsParams(choice=["yes"]))
    processor = StructuredLogitsProcessor(manager=manager, request_ids=["a", "a"])
    with pytest.raises(ValueError, match="request_ids has 2 entries, but the batch has 3 rows"):
        processor(torch.tensor([[5]] * 3), torch.zeros(3, 1024))
    processor = StructuredLogitsProcessor(manager=manager, request_ids=["absent"])
    with pytest.raises(UnknownRequestError, match="request 'absent' is not with the manager"):
        processor(torch.tensor([[5]]), torch.zeros(1, 1024))
    assert manager.num_requests == 1


def test_processor_at_a_dead_end_names_the_row(parts):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    from structout import StructuredOutputManager

    tiny = Tokenizer(models.BPE({"<e>": 0, "a": 1}, []))
    tiny.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny, eos_token="<e>")  # noqa: S106 - no password
    with StructuredOutputManager(tokenizer, 2) as manager:
        # The vocabulary has no b, which other engines do not look at.
        params = StructuredOutputsParams(regex="ab", backend="xgrammar")
        processor = StructuredLogitsProcessor(manager=manager, params=params)
        processor(torch.tensor([[1]]), torch.zeros(1, 2))
        with pytest.raises(DeadEndError, match=r"row 0 .*: the grammar allows no token here"):
            processor(torch.tensor([[1, 1]]), torch.zeros(1, 2))
