"""Instances token by token: engines accept what the schema allows, and masks allow what
engines accept.

The schemas of tests/corpus always run. ``--maskbench PATH`` adds those of a file in
MaskBench's format, one per line.
"""

import json
import random
from pathlib import Path

import jsonschema
import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.corpus import CASES
from support.tokenizers_on_the_spot import byte_level

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
STOP = VOCABULARY.stop_token_ids[0]


@pytest.fixture(scope="module")
def backend_set():
    return BackendSet(VOCABULARY, StructuredOutputsConfig(compile_timeout=60), byte_level())


@pytest.fixture(scope="module")
def maskbench(request):
    path = request.config.getoption("--maskbench")
    if path is None:
        pytest.skip("no --maskbench PATH: MaskBench's schemas were not tried")
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def compile_or_none(backend_set, schema, backend):
    """With keys in any order, as instances have them."""
    try:
        params = StructuredOutputsParams(json=schema, backend=backend, key_order="any")
        return backend_set.compile(params.constraint())
    except GrammarError:
        return None


def tokens_of(value):
    return [*VOCABULARY.spell(json.dumps(value, ensure_ascii=False)), STOP]


def accepted_prefix(grammar, tokens):
    """How many tokens are accepted one by one. The grammar is rolled back
    afterwards."""
    accepted = 0
    for token in tokens:
        if not grammar.accept_tokens("r", [token]):
            break
        accepted += 1
    grammar.rollback(accepted)
    return accepted


def allowed(grammar):
    bitmask = allocate_token_bitmask(1, VOCABULARY.size, pin_memory=False)
    grammar.fill_bitmask(bitmask, 0)
    words = bitmask[0].tolist()
    return {i for i in range(VOCABULARY.size) if words[i >> 5] >> (i & 31) & 1}


def check_masks(grammar, tokens, draw):
    """Check masks against accepted tokens along an instance, and again after rollbacks
    in random order."""
    masks = []
    for token in tokens:
        mask = allowed(grammar)
        others = draw.sample(range(VOCABULARY.size), 40)
        for other in {*others, *draw.sample(sorted(mask), min(8, len(mask)))}:
            assert (other in mask) == bool(grammar.validate_tokens([other]))
        masks.append(mask)
        assert token in mask
        assert grammar.accept_tokens("r", [token])
    positions = list(range(len(tokens)))
    draw.shuffle(positions)
    for position in positions[:5]:
        grammar.rollback(len(tokens) - position)
        assert allowed(grammar) == masks[position]
        assert grammar.accept_tokens("r", tokens[position:])
    grammar.reset()


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_masks_along_instances_of_own_schemas_allow_what_is_accepted(backend_set, case, backend):
    compiled = compile_or_none(backend_set, case["schema"], backend)
    if compiled is None:
        return
    draw = random.Random(case["name"])
    judge = jsonschema.validators.validator_for(case["schema"])(case["schema"])
    for test in case["tests"]:
        tokens = tokens_of(test["data"])
        is_accepted = accepted_prefix(compiled.grammar, tokens) == len(tokens)
        if backend == "auto":
            # Without a format checker the judge reads a format as an annotation too.
            violates_format_only = compiled.annotations and judge.is_valid(test["data"])
            assert is_accepted == test["valid"] or (is_accepted and violates_format_only), test["data"]
        if is_accepted:
            check_masks(compiled.grammar, tokens[:80], draw)


def test_compile_serves_all_own_schemas(backend_set):
    assert [case["name"] for case in CASES if compile_or_none(backend_set, case["schema"], "auto") is None] == []


def test_maskbench_verdicts(backend_set, maskbench):
    wrong, num_compiled = [], 0
    for case in maskbench:
        compiled = compile_or_none(backend_set, case["schema"], "auto")
        if compiled is None:
            continue
        num_compiled += 1
        for test in case["tests"]:
            tokens = tokens_of(test["data"])
            is_accepted = accepted_prefix(compiled.grammar, tokens) == len(tokens)
            if is_accepted != test["valid"]:
                wrong.append((case["name"], test))
    assert wrong == []
    assert num_compiled >= 0.94 * len(maskbench)


def test_maskbench_masks(backend_set, maskbench):
    draw = random.Random(0)
    for case in maskbench[::7]:
        compiled = compile_or_none(backend_set, case["schema"], "auto")
        valid = [test["data"] for test in case["tests"] if test["valid"]]
        if compiled is not None and valid:
            check_masks(compiled.grammar, tokens_of(valid[0])[:200], draw)


def test_maskbench_forced_tokens_are_canonical(backend_set, maskbench):
    """Along the tokenizer's own tokens of an instance, the forced tokens are the next
    ones."""
    tokenizer = byte_level()
    for case in maskbench[::5]:
        compiled = compile_or_none(backend_set, case["schema"], "auto")
        for test in case["tests"]:
            if compiled is None or not test["valid"]:
                continue
            tokens = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False)[:150]
            for position, token in enumerate(tokens):
                forced = compiled.grammar.compute_ff_tokens()
                assert forced[: len(tokens) - position] == tokens[position : position + len(forced)], case["name"]
                assert compiled.grammar.accept_tokens("r", [token])
            compiled.grammar.reset()
