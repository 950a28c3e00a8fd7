"""The SGLang plugin: its registration, and the backend that SGLang's server makes."""

import argparse
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import tomllib

from structout.integrations import sglang as adapter
from support.locations import ROOT
from support.sglang_imports import make_sglang_importable
from support.tokenizers_on_the_spot import byte_level

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt import plugins
from sglang.srt.constrained import base_grammar_backend as sglang_grammar
from sglang.srt.constrained.base_grammar_backend import create_grammar_backend
from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.runtime_context import get_context
from sglang.srt.server_args import ServerArgs

from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from structout.integrations.sglang.token_sampler import StructoutSampler
from support.sglang_requests import EOS, KEYS, WIDTH, compile_key, generate, is_valid, text_of

# -- registration ----------------------------------------------------------------------


def test_entry_point_names_register():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["sglang.srt.plugins"].items()
    assert (name, EntryPoint(name, value, "sglang.srt.plugins").load()) == ("structout", adapter.register)


def test_plugin_loader_of_sglang_registers_both(monkeypatch):
    entry_point = EntryPoint("structout", "structout.integrations.sglang:register", "sglang.srt.plugins")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry_point] if group == entry_point.group else [])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    monkeypatch.setattr(sglang_sampler, "_CUSTOM_SAMPLER_FACTORIES", {})
    plugins.load_plugins()
    assert set(sglang_grammar.GRAMMAR_BACKEND_REGISTRY) == {"structout"}
    assert {"structout": StructoutSampler} == sglang_sampler._CUSTOM_SAMPLER_FACTORIES


def test_register_in_a_process_without_sglangs_sampler_does_not_import_it():
    script = (
        "import sys; from support import sglang_imports; sglang_imports.make_sglang_importable(); "
        "from structout.integrations import sglang; sglang.register(); "
        "from sglang.srt.arg_groups.choices import SAMPLING_BACKEND_CHOICES; "
        "print('structout' in SAMPLING_BACKEND_CHOICES, 'sglang.srt.layers.sampler' in sys.modules)"
    )
    path = os.pathsep.join([*sys.path, str(ROOT / "tests")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert run.stdout.split() == ["True", "False"], run.stderr


def test_register_with_a_build_of_a_known_version_registers(monkeypatch):
    monkeypatch.setattr(adapter, "version", lambda name: "0.5.23+cu130")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    adapter.register()
    assert set(sglang_grammar.GRAMMAR_BACKEND_REGISTRY) == {"structout"}


def test_register_offers_both_names_on_the_command_line():
    arguments = ["--model-path", "m", "--grammar-backend", "structout", "--sampling-backend", "structout"]
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(arguments)
    assert (parsed.grammar_backend, parsed.sampling_backend) == ("structout", "structout")


def test_register_twice_offers_the_name_once():
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES

    adapter.register()
    assert GRAMMAR_BACKEND_CHOICES.count("structout") == 1


def test_register_with_an_unknown_version_warns_and_registers_nothing(monkeypatch):
    monkeypatch.setattr(adapter, "version", lambda name: "0.6.0")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    with pytest.warns(RuntimeWarning, match=r"supports SGLang 0\.5\.23, got 0\.6\.0"):
        adapter.register()
    assert sglang_grammar.GRAMMAR_BACKEND_REGISTRY == {}


def test_register_with_the_switch_off_registers_nothing(monkeypatch):
    monkeypatch.setenv("STRUCTOUT_SGLANG", "0")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    adapter.register()
    assert sglang_grammar.GRAMMAR_BACKEND_REGISTRY == {}


def test_import_of_the_adapter_imports_neither_sglang_nor_engines():
    script = (
        "import sys, structout.integrations.sglang; "
        "print([n for n in ('sglang', 'xgrammar', 'llguidance') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "[]", run.stderr


# -- the backend that the server makes -------------------------------------------------


@pytest.fixture
def server():
    """A function that makes the backend of a server with some settings."""

    def make(tokenizer=None, eos=None, **settings):
        with get_context().override_server_args(grammar_backend="structout", **settings) as server_args:
            return create_grammar_backend(server_args, tokenizer or byte_level(), WIDTH, eos or {EOS})

    return make


def test_server_makes_the_backend_by_its_name(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
    backend = server()
    assert isinstance(backend, StructoutGrammarBackend)
    assert is_valid("json", text_of(backend, generate(backend, compile_key(backend, KEYS["json"]), 0)[:-1]))
    assert server(eos={7, 9})._vocabulary.stop_token_ids == (7, 9)
    assert server(eos=7)._vocabulary.stop_token_ids == (7,)


def test_server_prepares_the_engine_at_its_start_and_optional_ones_when_named(server):
    backend = server()
    assert [*backend._engines._backends] == ["native"]
    backend._engines.destroy()


def test_server_settings_reach_the_constraints(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)

    def accepts(backend, text):
        grammar = compile_key(backend, KEYS["json"])
        return len(grammar._position.validate_tokens(tokens := backend._vocabulary.spell(text))) == len(tokens)

    assert not accepts(server(constrained_json_disable_any_whitespace=True), '{"name":  ')
    assert accepts(server(constrained_json_max_whitespace_cnt=4), '{    "name"')
    assert not accepts(server(), '{    "name"')
    assert not accepts(server(constrained_json_whitespace_pattern="\t"), '{ "name"')
    assert accepts(server(constrained_json_whitespace_pattern="\t"), '{\t"name"')


def test_key_order_of_the_environment_reaches_the_constraints(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
    assert server()._config.key_order == "declared"
    monkeypatch.setenv("STRUCTOUT_KEY_ORDER", "any")
    assert server()._config.key_order == "any"


def test_tokenizer_without_known_bytes_stops_the_server():
    with pytest.raises(TypeError, match="expected a Hugging Face tokenizer"):
        StructoutGrammarBackend(object(), WIDTH, [0])
