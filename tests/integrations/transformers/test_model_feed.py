"""ModelFeed: rows that grow and shrink apart get the logits of a fresh start."""

import random
from functools import cache

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM as Mistral,
)

from structout.integrations.transformers.model_feed import ModelFeed

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 50}


@cache
def small_model(window=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if window is None:
            return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
        return Mistral(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=window)).eval()


def feed_of(model, prompts):
    """A feed with left-padded prompts, prepared as transformers prepares them."""
    width = max(map(len, prompts))
    input_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    kwargs = {
        "attention_mask": None if mask.all() else mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "past_key_values": DynamicCache(config=model.config),
        "use_cache": True,
        "logits_to_keep": 1,
    }
    return ModelFeed(model, input_ids, model.generation_config, kwargs)


def logits_of(model, text):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([text])).logits[0]


def check(logits, model, text, num_tokens):
    torch.testing.assert_close(logits, logits_of(model, text)[-num_tokens:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("num_rows", [1, 3])
@torch.inference_mode()
def test_forward_with_gaps_gives_the_logits_of_a_fresh_start(num_rows, window):
    rng = random.Random(num_rows)
    model = small_model(window)
    texts = [rng.choices(range(1, 50), k=2 + i) for i in range(num_rows)]
    feed = feed_of(model, texts)
    for step in range(20):
        new = [rng.choices(range(50), k=rng.randint(0, 3)) for _ in texts]
        new[0] = new[0] or ([7] if step else [])
        if any(new):
            feed.append(new)
        logits = feed.forward()
        first = logits.shape[1] - max(map(len, new))
        assert first == (step == 0)
        for i, tokens in enumerate(new):
            texts[i] += tokens
            num_logits = len(tokens) + first
            if num_logits:
                check(logits[i, :num_logits], model, texts[i], num_logits)
            count = rng.randint(0, min(len(tokens), 2))
            feed.forget(i, count)
            del texts[i][len(texts[i]) - count :]
    assert feed.num_passes == 20


@torch.inference_mode()
def test_forget_crops_columns_that_all_rows_have_forgotten():
    feed = feed_of(small_model(), [[1, 2], [5, 6]])
    feed.append([[3, 4], [7, 8]])
    feed.forward()
    cache = feed._outputs["past_key_values"]
    feed.forget(0, 2)
    assert cache.get_seq_length() == 4
    feed.forget(1, 1)
    assert (cache.get_seq_length(), feed.columns.tolist()) == (3, [[1, 2, 3], [5, 6, 7]])
    feed.forget(1, 0)
    assert cache.get_seq_length() == 3
    feed.append([[9, 10], [8]])
    logits = feed.forward()
    check(logits[0], small_model(), [1, 2, 9, 10], 2)
    check(logits[1, :1], small_model(), [5, 6, 7, 8], 1)


@torch.inference_mode()
def test_forward_beside_a_longer_row_stays_within_the_learned_positions():
    """A gap at the position after the last one would raise IndexError."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=6, n_embd=16, n_layer=1, n_head=2)).eval()
    feed = feed_of(model, [[1, 2, 3, 4, 5], [1]])
    feed.forward()
    feed.append([[6], [2, 3, 4]])
    logits = feed.forward()
    check(logits[0, :1], model, [1, 2, 3, 4, 5, 6], 1)
    check(logits[1], model, [1, 2, 3, 4], 3)
