"""The manager compared with grammar engines used directly: equal masks and verdicts.

The schemas of tests/corpus always run. ``--maskbench PATH`` adds those of a file in
MaskBench's format, one per line.
"""

import json
import random
from pathlib import Path

import pytest
import xgrammar

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.corpus import CASES
from support.tokenizers_on_the_spot import byte_level

V = 525
VOCABULARY = Vocabulary.from_tokenizer(byte_level(), V)
STOP = VOCABULARY.stop_token_ids[0]
LIVE = 24  # requests at a time


class Follower:
    """A text that is fed to the manager and, token by token, to a grammar of its
    own."""

    def __init__(self, name, grammar, tokens):
        self.name, self.grammar, self.tokens = name, grammar, tokens
        self.num_accepted = 0

    @property
    def is_done(self):
        return self.grammar.is_terminated() or self.num_accepted == len(self.tokens)

    def mask(self):
        mask = allocate_token_bitmask(1, V)
        self.grammar.fill_bitmask(mask, 0)
        return mask[0].numpy()

    def advance(self, manager, rng):
        """Roll back some tokens or none, then feed one. Returns whether the text goes
        on."""
        num_rolled_back = rng.randrange(min(self.num_accepted, 8) + 1) if rng.random() < 0.1 else 0
        self.grammar.rollback(num_rolled_back)
        manager.rollback(self.name, num_rolled_back)
        self.num_accepted -= num_rolled_back
        token = self.tokens[self.num_accepted]
        is_accepted = self.grammar.accept_tokens(self.name, [token])
        assert manager.accept_batch({self.name: [token]}) == {self.name: is_accepted}
        assert manager.is_terminated(self.name) is self.grammar.is_terminated()
        self.num_accepted += is_accepted
        return is_accepted and not self.is_done


def follow_all(cases, backend):
    """Follow the texts of all cases, ``LIVE`` at a time, in a new order at each
    step."""
    rng = random.Random(0)
    config = StructuredOutputsConfig(compile_workers=2, compile_timeout=60)
    engines = BackendSet(VOCABULARY, config)
    texts = [(case["schema"], test["data"]) for case in cases for test in case["tests"]]
    rng.shuffle(texts)
    num_masks = num_refused = 0
    with StructuredOutputManager(byte_level(), V, config) as manager:
        followers = {}
        while texts or followers:
            while texts and len(followers) < LIVE:
                schema, data = texts.pop()
                name = f"r{len(texts)}"
                params = StructuredOutputsParams(json=schema, backend=backend)
                manager.add_request(name, params)
                try:
                    grammar = engines.compile(params.constraint(config)).grammar.copy()
                except GrammarError:
                    with pytest.raises(GrammarError):
                        manager.wait_ready(name, timeout=60)
                    manager.finish_request(name)
                    num_refused += 1
                    continue
                manager.wait_ready(name, timeout=60)
                tokens = [*VOCABULARY.spell(json.dumps(data, ensure_ascii=False)), STOP]
                followers[name] = Follower(name, grammar, tokens)
            names = list(followers)
            rng.shuffle(names)
            batch = manager.grammar_bitmask(names)
            assert not batch.errors
            for row, name in enumerate(names):
                assert (batch.bitmask[row] == followers[name].mask()).all()
                num_masks += 1
            for name in names:
                if not followers[name].advance(manager, rng):
                    manager.finish_request(name)
                    del followers[name]
    return num_masks, num_refused


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
def test_masks_and_verdicts_equal_the_engines_over_own_schemas(backend, num_cases):
    num_masks, num_refused = follow_all(CASES[:: num_cases(3, long=1)], backend)
    assert num_masks > 1_000
    assert num_refused < 200


def test_masks_and_verdicts_equal_the_engines_over_maskbench(request):
    path = request.config.getoption("--maskbench")
    if path is None:
        pytest.skip("no --maskbench PATH: MaskBench's schemas were not tried")
    num_masks, num_refused = follow_all([json.loads(line) for line in Path(path).read_text().splitlines()], "auto")
    assert num_masks > 50_000
    assert num_refused < 100


def test_masks_equal_xgrammars_own_matcher():
    """xgrammar without structout, on a schema that needs no correction."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    info = xgrammar.TokenizerInfo(
        list(VOCABULARY.token_bytes), xgrammar.VocabType.RAW, vocab_size=V, stop_token_ids=[STOP]
    )
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_json_schema(schema))
    mask = xgrammar.allocate_token_bitmask(1, V)
    with StructuredOutputManager(byte_level(), V) as manager:
        manager.add_request("r", StructuredOutputsParams(json=schema, backend="xgrammar"))
        manager.wait_ready("r", timeout=60)
        for token in [*VOCABULARY.spell('{"a": [1, 23 ,456]}'), STOP]:
            matcher.fill_next_token_bitmask(mask, 0)
            assert (manager.grammar_bitmask(["r"]).bitmask == mask.numpy()).all()
            assert manager.accept_tokens("r", [token]) and matcher.accept_token(token)  # noqa: PT018 - both or neither
