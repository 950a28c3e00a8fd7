"""The manager compared with a simple model, under sequences of calls that Hypothesis
chooses."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import structout
from structout import (
    DuplicateRequestError,
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsParams,
    UnknownRequestError,
)
from support.managers import STOP, TOKENIZER, V, ids_of

CHOICES = ["yes", "yes, quite", "no", '{"name": "Ada"}', '{"name": "Adam"}', "naïve", "na", "東京"]
MARK = ids_of("</think>")


@dataclass
class Text:
    """The model of one request."""

    choices: tuple[str, ...]
    mark: list[int]
    tokens: list[int] = field(default_factory=list)

    def num_free(self) -> int:
        """How many tokens precede the constraint: those up to the end of the mark, or
        more than all if it has not come."""
        if not self.mark:
            return 0
        for end in range(len(self.mark), len(self.tokens) + 1):
            if self.tokens[end - len(self.mark) : end] == self.mark:
                return end
        return len(self.tokens) + 1

    def allowed(self, vocabulary) -> set[int] | None:
        """The tokens allowed next; None: all."""
        constrained = self.tokens[self.num_free() :]
        if self.num_free() > len(self.tokens):
            return {*range(V)} - {STOP}
        if STOP in constrained:
            return None
        text_so_far = b"".join(vocabulary.token_bytes[token] for token in constrained)
        rests = [
            choice.encode()[len(text_so_far) :] for choice in self.choices if choice.encode().startswith(text_so_far)
        ]
        allowed = {
            token
            for token, text in enumerate(vocabulary.token_bytes)
            if text and any(rest.startswith(text) for rest in rests)
        }
        return allowed | {STOP} if b"" in rests else allowed

    def accept(self, token: int, vocabulary) -> bool:
        allowed = self.allowed(vocabulary)
        if allowed is not None and token not in allowed:
            return False
        self.tokens.append(token)
        return True

    def is_terminated(self) -> bool:
        return STOP in self.tokens[self.num_free() :]


names = st.integers(0, 7).map(str)
# Mostly numbers that choose an allowed token, as a model would; see ``tokens_for``.
steps = st.lists(st.one_of(st.integers(0, 10_000), st.sampled_from([-1, -2, -3, -4])), max_size=6)


class ManagerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.manager = StructuredOutputManager(TOKENIZER, V)
        self.texts: dict[str, Text] = {}

    def teardown(self):
        if hasattr(self, "manager"):
            self.manager.close()

    def tokens_for(self, text: Text, numbers: list[int]) -> list[int]:
        """Turn numbers into tokens: -1 is no token, -2 the stop token, -3 out of range,
        -4 some token, and any other number chooses an allowed token."""
        text, tokens = copy.deepcopy(text), []
        for number in numbers:
            allowed = text.allowed(self.manager.vocabulary)
            choices = sorted(range(V) if allowed is None else allowed)
            tokens.append({-1: -1, -2: STOP, -3: V, -4: 77}.get(number, choices[number % len(choices)]))
            text.accept(tokens[-1], self.manager.vocabulary)
        return tokens

    @rule(name=names, choices=st.sets(st.sampled_from(CHOICES), min_size=1), thinks=st.booleans(), replay=steps)
    def add(self, name, choices, thinks, replay):
        text = Text(tuple(sorted(choices)), MARK if thinks else [])
        params = StructuredOutputsParams(choice=text.choices, backend="xgrammar")
        output = self.tokens_for(text, replay)

        def add():
            self.manager.add_request(name, params, output_token_ids=output, constrain_after=text.mark or None)

        if name in self.texts:
            with pytest.raises(DuplicateRequestError):
                add()
            return
        add()
        if all([text.accept(token, self.manager.vocabulary) for token in output]):
            self.manager.wait_ready(name, timeout=60)
            assert self.manager.status(name) is GrammarStatus.READY
            self.texts[name] = text
        else:
            with pytest.raises(structout.GrammarError, match="output_token_ids"):
                self.manager.wait_ready(name, timeout=60)
            assert self.manager.status(name) is GrammarStatus.FAILED
            self.manager.finish_request(name)

    @rule(name=names)
    def finish(self, name):
        self.manager.finish_request(name)
        self.texts.pop(name, None)
        with pytest.raises(UnknownRequestError):
            self.manager.status(name)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), numbers=steps, in_batch=st.booleans())
    def accept(self, data, numbers, in_batch):
        name = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = self.tokens_for(self.texts[name], numbers)
        after = copy.deepcopy(self.texts[name])
        expected = all([after.accept(token, self.manager.vocabulary) for token in tokens])
        if in_batch:
            unknown = {"nobody": [1]}
            assert self.manager.accept_batch({name: tokens, **unknown}) == {name: expected, "nobody": False}
        else:
            assert self.manager.accept_tokens(name, tokens) is expected
        if expected:
            self.texts[name] = after

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), numbers=steps)
    def validate(self, data, numbers):
        name = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = self.tokens_for(self.texts[name], numbers)
        text = copy.deepcopy(self.texts[name])
        num_accepted = next(
            (i for i, t in enumerate(tokens) if not text.accept(t, self.manager.vocabulary)), len(tokens)
        )
        assert self.manager.validate_tokens(name, tokens) == tokens[:num_accepted]

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), num_tokens=st.integers(-1, 12))
    def rollback(self, data, num_tokens):
        name = data.draw(st.sampled_from(sorted(self.texts)))
        text = self.texts[name]
        if 0 <= num_tokens <= len(text.tokens):
            self.manager.rollback(name, num_tokens)
            text.tokens = text.tokens[: len(text.tokens) - num_tokens]
        else:
            with pytest.raises(ValueError, match="num_tokens"):
                self.manager.rollback(name, num_tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), new=names)
    def fork(self, data, new):
        name = data.draw(st.sampled_from(sorted(self.texts)))
        if new in self.texts:
            with pytest.raises(DuplicateRequestError):
                self.manager.fork(name, new)
        else:
            self.manager.fork(name, new)
            self.texts[new] = copy.deepcopy(self.texts[name])

    @rule(data=st.data(), order=st.permutations([*map(str, range(8)), "nobody"]), numbers=steps)
    def step(self, data, order, numbers):
        """Compare every row of a decoding step with the model. One request has
        drafts."""
        drafts = {}
        if self.texts and numbers:
            name = data.draw(st.sampled_from(sorted(self.texts)))
            drafts[name] = self.tokens_for(self.texts[name], numbers)
        with pytest.raises(UnknownRequestError, match="nobody"):
            self.manager.grammar_bitmask(order, drafts)
        batch = self.manager.grammar_bitmask(order, drafts, strict=False)
        assert batch.request_ids == tuple(order)
        assert not batch.errors
        for i, name in enumerate(order):
            rows = torch.from_numpy(batch.bitmask[batch.row_indptr[i] : batch.row_indptr[i + 1]].copy())
            expected, num_allowed = self.rows_of(self.texts.get(name), drafts.get(name, []))
            assert [set(mask.nonzero().flatten().tolist()) for mask in structout.unpack_bitmask(rows, V)] == expected
            if drafts:
                assert batch.num_acceptable_drafts[i] == num_allowed

    def rows_of(self, text: Text | None, drafts: list[int]) -> tuple[list[set[int]], int]:
        if text is None or text.is_terminated():
            return [], 0
        text, everything, rows = copy.deepcopy(text), set(range(V)), []
        for j, token in enumerate([*drafts, None]):
            allowed = text.allowed(self.manager.vocabulary)
            rows.append(everything if allowed is None else allowed)
            if token is None:
                return rows, j
            if token == -1 or text.is_terminated():
                return rows + [everything] * (len(drafts) - j), j
            if not text.accept(token, self.manager.vocabulary):
                return rows + [rows[-1]] * (len(drafts) - j), j
        raise AssertionError

    @invariant()
    def knows_the_same_requests(self):
        if hasattr(self, "manager"):
            stats = self.manager.stats()
            assert (stats.waiting, stats.ready, stats.failed) == (0, len(self.texts), 0)
            slots = [self.manager.slot(name) for name in self.texts]
            assert len(set(slots)) == len(slots)
            assert all(slot < 8 for slot in slots)
            for name, text in self.texts.items():
                assert self.manager.is_terminated(name) is text.is_terminated()


def test_manager_does_what_its_model_does(num_cases):
    examples = num_cases(20, long=200)
    limits = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(ManagerMachine, settings=limits)
