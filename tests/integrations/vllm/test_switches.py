"""The environment variables that turn the plugin off, in full or in part."""

import importlib
import json
import logging
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.structured_output import StructuredOutputManager

from structout.integrations import vllm as plugin
from structout.integrations.vllm import hooks
from structout.integrations.vllm.grammar_manager import GrammarManager
from support.locations import ROOT
from support.vllm_engines import engine, finish_reasons, texts
from support.vllm_requests import LETTERS, SCHEMA, dead_ends, greedy, structured

MANAGER = {
    "vllm.v1.engine.core.StructuredOutputManager",
    "vllm.sampling_params.SamplingParams._validate_structured_outputs",
    "vllm.parser.abstract_parser._xgrammar_supports",
    "vllm.parser.abstract_parser.structured_outputs_to_format",
    "vllm.entrypoints.generate.base.protocol.validate_structural_tag_payload",
    "vllm.entrypoints.openai.responses.protocol.ResponsesRequest.check_custom_tool_format.__func__.__code__",
    "vllm.renderers.online_renderer.OnlineRenderer.adjust_harmony_request",
    "vllm.renderers.online_renderer.OnlineRenderer.preprocess_chat",
    "vllm.tool_parsers.utils.custom_tool_as_function_dict",
    "vllm.v1.engine.core.EngineCore.preprocess_add_request",
    "vllm.v1.engine.core.MsgpackDecoder",
}


def names():
    """What the names that the plugin replaces are now."""
    return {f"{hook.module}.{hook.name}": getattr(hook.owner(), hook.attribute) for hook in every_hook()}


def every_hook():
    return [*hooks.manager_hooks(), *hooks.sampler_hooks()]


@pytest.fixture
def vllms_own():
    """The names as vLLM defines them, without the plugin. It comes back in the end."""
    hooks.uninstall()
    yield names()
    hooks.uninstall()
    hooks.install()


@pytest.mark.parametrize(
    ("environment", "replaced"),
    [
        ({}, "all"),
        ({"STRUCTOUT_VLLM": "1"}, "all"),
        ({"STRUCTOUT_VLLM": "0"}, "nothing"),
        ({"STRUCTOUT_VLLM_MANAGER": "0"}, "sampler"),
        ({"STRUCTOUT_VLLM_SAMPLER": "0"}, "manager"),
        ({"STRUCTOUT_VLLM_SAMPLER": "0", "STRUCTOUT_VLLM_MANAGER": "0"}, "nothing"),
    ],
    ids=str,
)
def test_register_replaces_the_names_of_the_parts_that_are_on(vllms_own, monkeypatch, environment, replaced):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plugin.register()
    plugin.register()
    changed = {name for name, value in names().items() if value is not vllms_own[name]}
    expected = {"all": set(vllms_own), "nothing": set(), "manager": MANAGER, "sampler": set(vllms_own) - MANAGER}
    assert changed == expected[replaced]
    hooks.uninstall()
    assert names() == vllms_own


def test_a_switch_that_is_neither_on_nor_off_is_refused(vllms_own, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_VLLM", "yes")
    with pytest.raises(ValueError, match="STRUCTOUT_VLLM must be one of 0, 1"):
        plugin.register()
    assert names() == vllms_own


@pytest.mark.parametrize("version", ["0.31.4", "0.34.0", "1.0.0+cpu"])
def test_an_unknown_version_of_vllm_is_left_alone_with_a_warning(vllms_own, monkeypatch, caplog, version):
    monkeypatch.setattr(vllm, "__version__", version)
    log = logging.getLogger("vllm.structout")
    log.addHandler(caplog.handler)
    try:
        plugin.register()
    finally:
        log.removeHandler(caplog.handler)
    assert names() == vllms_own
    assert version.split("+")[0] in caplog.text
    assert "STRUCTOUT_VLLM=0" in caplog.text


def test_the_names_that_are_replaced_are_in_vllm():
    for hook in every_hook():
        owner = importlib.import_module(hook.module)
        for part in hook.name.split("."):
            owner = getattr(owner, part)


def test_tables_of_hooks_in_the_docs_name_every_hook_and_its_module():
    page = (ROOT / "docs" / "integrations.md").read_text()
    section = page.partition("### What is replaced")[2].partition("\n### ")[0]
    documented = re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \| ", section, re.MULTILINE)
    replaced = [*hooks.manager_hooks(), *hooks.sampler_hooks(), *hooks._model_runner_v2_hooks()]
    root = Path(vllm.__file__).parent
    paths = {hook.module: Path(importlib.import_module(hook.module).__file__) for hook in replaced}
    assert set(documented) == {(hook.name, str(paths[hook.module].relative_to(root))) for hook in replaced}
    assert len(documented) == len(set(documented))


def outputs_of(running):
    requests = [
        greedy(40, **structured(regex=LETTERS), presence_penalty=0.5),
        SamplingParams(seed=1, max_tokens=150, **structured(json=SCHEMA)),
        greedy(20, **structured(choice=["red", "green"]), logprobs=2),
    ]
    outputs = running.generate(requests)
    letters, document, colour = (group[0] for group in texts(outputs))
    assert re.fullmatch(LETTERS, letters)
    if finish_reasons(outputs)[1] == ["stop"]:
        assert json.loads(document)["b"] in ("x", "y")
    assert colour in ("red", "green")
    return texts(outputs)[::2]


def test_vllms_own_manager_and_structouts_sampler_serve_requests(small_model, vllms_own, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_VLLM_MANAGER", "0")
    plugin.register()
    with engine(small_model) as running:
        assert type(running.manager) is StructuredOutputManager
        with pytest.raises(VLLMValidationError):
            running.generate([greedy(**structured(regex="[a-"))])
        ours = outputs_of(running)
        check_dead_ends_of_vllms_manager(running)
        hooks.uninstall()
        assert outputs_of(running) == ours


def check_dead_ends_of_vllms_manager(running):
    ends = dead_ends(running)
    outputs = running.generate([params for params, _ in ends] + [greedy(20)])
    for (_, text), output in zip(ends, outputs, strict=False):
        for completion in output.outputs:
            assert (completion.text, completion.finish_reason) == (text, "error")
            assert min(completion.token_ids, default=0) >= 0
    assert finish_reasons(outputs)[-1] == ["length"]


def test_structouts_manager_serves_vllms_own_sampler(small_model, vllms_own, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_VLLM_SAMPLER", "0")
    plugin.register()
    with engine(small_model) as running:
        assert type(running.manager) is GrammarManager
        theirs = outputs_of(running)
        hooks.install()
        assert outputs_of(running) == theirs
        assert running.num_held == 0


def test_a_backend_that_structout_does_not_have_is_vllms(small_model):
    with engine(small_model, structured_outputs_config={"backend": "lm-format-enforcer"}) as running:
        assert running.manager.structout is None
        outputs = running.generate([greedy(20), dead_ends(running)[4][0]])
        assert finish_reasons(outputs) == [["length"], ["error"]]


def test_vllms_own_backend_name_is_the_only_one(small_model):
    config = {"backend": "xgrammar"}
    with engine(small_model, structured_outputs_config=config) as running:
        outputs_of(running)
        assert set(running.manager.structout.stats().backends) == {"xgrammar"}
        # vLLM translates Lark for xgrammar; here the own engine reads it.
        lark = 'start: "id=" NUMBER\nNUMBER: /[0-9]{2}/'
        assert re.fullmatch("id=[0-9]{2}", texts(running.generate([greedy(**structured(grammar=lark))]))[0][0])
