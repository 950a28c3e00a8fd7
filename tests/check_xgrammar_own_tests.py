"""Run xgrammar's own tests of structural tags with structout's engine as the judge.

    python tests/check_xgrammar_own_tests.py

Downloads the sources of the xgrammar that is installed. Of its tests those run that ask
whether a text is one of a tag; those of its grammars' spelling do not.
"""

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "xgrammar-own-tests"
TESTS = ("test_structural_tag_converter.py", "test_builtin_structural_tag.py")

_SPACES = "values of XML styles have no whitespace around them that their readers would keep"
# Tests that fail: a part of the name, how many have it, and the reason.
EXCEPTIONS = (
    ('test_json_schema_format[{"b": "hello"}', 1, "the schema does not forbid the key"),
    ("test_qwen_parameter_xml_format[", 3, _SPACES),
    ("test_json_schema_style_qwen_xml_format[", 3, _SPACES),
    ("test_json_schema_style_minimax_xml_format[", 2, _SPACES),
    ("test_json_schema_style_deepseek_xml_format[", 1, _SPACES),
    ("test_json_schema_style_kimi_k3_xml_format[", 1, _SPACES),
    ("kimi_k3_xml_free_form_keys_allow_any_type[integer-1]", 1, "numbers of any kind have the type number"),
    ("test_kimi_k3_free_form_arguments_keep_every_type_attribute", 1, "numbers of any kind have the type number"),
    ("test_json_schema_style_kimi_k3_xml_escapes_key_attribute", 1, "such a key is refused"),
    ("test_xml_const_enum_values[", 1, "a string that looks like JSON, where the schema has other types too"),
    ("test_json_schema_format_any_order[", 1, "no key stands twice in an object"),
    ("test_json_schema_format_any_order_qwen_xml[", 1, "XML styles have one order of keys"),
    ("test_kimi_k3_full_tool_call_with_nested_arguments_and_any_order", 1, "XML styles have one order of keys"),
)

_PLUGIN = """
import inspect
import json

from structout import StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary

BACKEND = NativeBackend(Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,)))


def check_stag_with_instance(tag, instance, is_accepted=True, debug_print=False):
    if hasattr(tag, "model_dump_json"):
        tag = json.loads(tag.model_dump_json())
    else:
        tag = {"type": "structural_tag", "format": tag}
    grammar = BACKEND.compile(StructuredOutputsParams(structural_tag=tag, lenient=True).constraint()).grammar
    assert grammar.accept_tokens("", [*instance.encode(), 256]) == is_accepted


def pytest_collection_modifyitems(items):
    name = check_stag_with_instance.__name__
    items[:] = [item for item in items if name in inspect.getsource(item.function)]
    for item in items:
        item.module.check_stag_with_instance = check_stag_with_instance
"""


def download() -> Path:
    """The folder of xgrammar's tests."""
    name = f"xgrammar-{version('xgrammar')}"
    if not (FOLDER / name).exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        print(f"downloading the sources of {name} ...", flush=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download", "--no-deps"]
        subprocess.run([*pip, "--no-binary", "xgrammar", "--dest", FOLDER, name.replace("-", "==")], check=True)
        with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
            tests = [each for each in archive if each.name.startswith(f"{name}/tests/")]
            archive.extractall(FOLDER, tests, filter="data")
    return FOLDER / name / "tests" / "python"


def main() -> None:
    tests = download()
    (FOLDER / "structout_judges.py").write_text(_PLUGIN)
    (FOLDER / "pytest.ini").write_text("[pytest]\n")  # in the place of the project's around it
    command = [sys.executable, "-m", "pytest", "--quiet", "-c", FOLDER / "pytest.ini", "--disable-plugin-autoload"]
    command += ["-p", "structout_judges", "-p", "no:cacheprovider", "--tb=no", "-rfE", *TESTS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(FOLDER), str(tests)))}
    run = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)", run.stdout, re.MULTILINE)
    passed = re.search(r"(\d+) passed", run.stdout)
    if passed is None:
        sys.exit(run.stdout[-3000:] + run.stderr[-3000:])
    print(f"{passed[1]} of xgrammar's tests pass, {len(failed)} do not")
    is_wrong = False
    for part, count, reason in EXCEPTIONS:
        named = [name for name in failed if part in name]
        is_wrong |= len(named) != count
        print(
            f"  {len(named)} of {part.rstrip('[')}: {reason}" + (f" (expected {count})" if len(named) != count else "")
        )
        failed = [name for name in failed if name not in named]
    for name in failed:
        print(f"  UNEXPLAINED: {name}")
    sys.exit(is_wrong or bool(failed))


if __name__ == "__main__":
    main()
