"""Requests of many kinds to a vLLM engine of a small model."""

from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from support.vllm_clients import LETTERS, SCHEMA
from support.vllm_engines import Engine, finish_reasons, token_ids

# vLLM's drafts from the prompt and the text so far.
JUMP_FORWARD = {
    "method": "custom_class",
    "num_speculative_tokens": 8,
    "model": "structout.integrations.vllm.proposer.Proposer",
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
NESTED_LISTS = 'root ::= "[" (root ("," root)*)? "]"'
SENTENCE = "([a-f]|[g-z]){150,180}!"  # of one token a letter
CUT_OFF = {"extra_args": {"structout_fit": "off"}}  # where their limit is below the shortest text
PENALTIES = {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": 0.4}


def structured(**constraint: Any) -> dict[str, Any]:
    """The argument of ``SamplingParams`` for a constraint."""
    return {"structured_outputs": StructuredOutputsParams(**constraint)}


def greedy(max_tokens: int = 24, **arguments: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **arguments)


def letters_of(engine: Engine, text: str) -> list[int]:
    """The token of each letter."""
    return [engine.tokenizer.convert_tokens_to_ids(letter) for letter in text]


def every_kind(engine: Engine) -> dict[str, SamplingParams]:
    """Greedy requests with each parameter that changes which token is the best."""

    def long(**arguments: Any) -> SamplingParams:
        return greedy(100, ignore_eos=True, **arguments)

    letters = letters_of(engine, "abcdefghij")
    # What the model says without the parameters shows whether they do anything.
    plain = token_ids(engine.generate([greedy()]))[0][0]
    bad_words = engine.tokenizer.decode(plain[:1]), engine.tokenizer.decode(plain[2:4])
    return {
        "nothing": long(),
        "repetition": long(repetition_penalty=1.5),
        "repetition below one": long(repetition_penalty=0.8),
        "frequency": long(frequency_penalty=2.0),
        "frequency below zero": long(frequency_penalty=-2.0),
        "presence": long(presence_penalty=2.0),
        "all penalties": long(**PENALTIES),
        "bias": greedy(logit_bias={40: 30.0, plain[0]: -100.0}),
        "bad words": greedy(bad_words=list(bad_words)),
        "minimum": greedy(min_tokens=6, stop_token_ids=plain[:4]),
        "stop id": greedy(stop_token_ids=[plain[5]]),
        "stop text": greedy(stop=[engine.tokenizer.decode(plain[3:5])]),
        "only ends": long(logit_bias={engine.tokenizer.eos_token_id: 100.0}),
        "allowed": greedy(allowed_token_ids=letters),
        "allowed, bad words, bias, penalties": greedy(
            allowed_token_ids=letters, bad_words=["a", "cb"], logit_bias={letters[3]: 5.0}, **PENALTIES
        ),
        "regex": greedy(40, **structured(regex=LETTERS)),
        "json": greedy(60, **structured(json=SCHEMA)),
        "object": greedy(60, **structured(json_object=True)),
        "choice": greedy(**structured(choice=["red", "green", "blue"])),
        "grammar": greedy(40, **structured(grammar=NESTED_LISTS)),
        "regex, penalties": greedy(40, **structured(regex=LETTERS), **PENALTIES),
        "regex, bias": greedy(40, **structured(regex=LETTERS), logit_bias={letters[1]: 20.0}),
        "regex, bad words": greedy(40, **structured(regex=LETTERS), bad_words=["a", "bc"]),
        "regex, minimum": greedy(40, **structured(regex="[a-f]{1,30}"), min_tokens=20),
        "json, minimum past its end": greedy(60, **structured(json=SCHEMA), min_tokens=50),
    }


def seeded_kinds() -> dict[str, SamplingParams]:
    """Requests with a seed, with each parameter that changes how tokens are drawn."""
    return {
        "nothing": SamplingParams(seed=7, max_tokens=30),
        "filters": SamplingParams(seed=7, max_tokens=30, temperature=0.7, top_p=0.9, top_k=20),
        "min_p": SamplingParams(
            seed=2**63 - 1, max_tokens=30, min_p=0.01, frequency_penalty=0.5, bad_words=["a", "the"]
        ),
        "json": SamplingParams(seed=0, max_tokens=60, **structured(json=SCHEMA)),
        "regex, filters": SamplingParams(seed=1, max_tokens=40, top_k=3, **structured(regex=LETTERS), **PENALTIES),
        "n": SamplingParams(seed=5, max_tokens=30, n=3, logit_bias={40: 4.0}),
    }


def long_kinds() -> list[SamplingParams]:
    """Requests of about 200 tokens, for a KV cache that is too small for them."""
    return [
        SamplingParams(seed=4, max_tokens=200, ignore_eos=True),
        SamplingParams(seed=5, max_tokens=200, ignore_eos=True, bad_words=["a", "the"], **PENALTIES),
        SamplingParams(seed=6, max_tokens=200, **structured(regex=SENTENCE)),
        greedy(200, min_tokens=190, **PENALTIES),
        greedy(200, **structured(regex=SENTENCE), **PENALTIES),
        SamplingParams(seed=7, max_tokens=200, **structured(regex=SENTENCE), logprobs=2),
        greedy(20, **structured(regex="(abc)*z"), allowed_token_ids=[67]),
    ]


def dead_ends(engine: Engine) -> list[tuple[SamplingParams, str]]:
    """Requests that allow no token any more, with the text that comes before."""
    a, b, c = letters_of(engine, "abc")
    return [
        (greedy(**structured(regex="abc[xy]"), allowed_token_ids=[a, b, c]), "abc"),
        (greedy(**structured(regex="[a-c]{3}"), allowed_token_ids=letters_of(engine, "xyz")), ""),
        (greedy(**structured(choice=["bca"]), bad_words=["a"]), "bc"),
        (greedy(**structured(regex="ab+z"), allowed_token_ids=[a, c], logprobs=3), "a"),
        (SamplingParams(seed=1, max_tokens=20, allowed_token_ids=[a], bad_words=["aaa"]), "aa"),
        (
            SamplingParams(max_tokens=20, allowed_token_ids=[a, b], bad_words=["a", "b"], repetition_penalty=1.3, n=2),
            "",
        ),
    ]


def check_preempted_requests(tight: Engine, roomy: Engine) -> None:
    """Check that preempted requests get the tokens that they get where no request has
    to wait.

    Args:
        tight: an engine whose KV cache is too small for ``long_kinds``.
        roomy: one whose KV cache holds them all.
    """
    requests = long_kinds()
    expected = roomy.generate(requests)
    outputs = tight.generate(requests)
    assert sum(output.metrics.num_preemptions for output in expected) == 0
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert token_ids(outputs) == token_ids(expected)
    assert finish_reasons(outputs) == finish_reasons(expected)
    assert tight.num_held == 0


def check_dead_ends(engine: Engine) -> None:
    """Check that dead ends end their requests with an error, and no others."""
    ends = dead_ends(engine)
    others = [greedy(40, **structured(regex=LETTERS)), greedy(40, repetition_penalty=1.3, bad_words=["a"])]
    expected = token_ids(engine.generate(others))
    outputs = engine.generate([*(params for params, _ in ends), *others])
    for (_, text), output in zip(ends, outputs, strict=False):
        for completion in output.outputs:
            assert (completion.text, completion.finish_reason) == (text, "error")
            assert min(completion.token_ids, default=0) >= 0
            if completion.logprobs is not None:
                assert len(completion.logprobs) == len(completion.token_ids)
    assert token_ids(outputs[-2:]) == expected
    assert engine.num_held == 0
