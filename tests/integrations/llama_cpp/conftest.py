"""The models of the tests in this folder."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def llama():
    """SmolLM2-135M-Instruct."""
    from llama_cpp import Llama

    from structout.cli.smollm2 import find_gguf

    # On a busy machine threads spin while they wait for one another.
    return Llama(str(find_gguf(None)), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)


@pytest.fixture
def evaluated(llama, monkeypatch):
    """The tokens of each call of ``llama.eval``, from an empty cache on."""
    calls = []
    llama.reset()

    def evaluate(tokens, original=llama.eval):
        calls.append([*tokens])
        original(tokens)

    monkeypatch.setattr(llama, "eval", evaluate)
    return calls


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = ["▁", "▁the", "the", "a", "é", "{", '"']
WIDTH = 32


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory):
    """A vocabulary with byte fallback, and a tiny model with random weights."""
    from gguf import GGUFWriter
    from llama_cpp import Llama

    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<|im_end|>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    tokens += [(word, NORMAL) for word in WORDS]
    tokens += [("<tool_call>", USER_DEFINED), ("[unused]", UNUSED)]
    path = tmp_path_factory.mktemp("sentencepiece") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd": (len(tokens), WIDTH)} | {f"blk.0.{name}": (WIDTH, WIDTH) for name in matrices}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=np.single))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.single))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Llama(str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
