"""OpenAI's custom tool for patches of files: what is generated under its grammar is a
patch."""

import random
from collections import Counter

import pytest

from structout import StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.mask_walks import MaskWalker

PATCH = r"""
start: "*** Begin Patch" LF file+ "*** End Patch" LF?
file: "*** Add File: " NAME LF added+
    | "*** Delete File: " NAME LF
    | "*** Update File: " NAME LF ("*** Move to: " NAME LF)? (place | line)* end_of_file?
place: ("@@" | "@@ " NAME) LF
line: ("+" | "-" | " ") /.*/ LF
added: "+" /.*/ LF
end_of_file: "*** End of File" LF
NAME: /.+/
%import common.LF
"""
TOOL = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}}
FILES = ("*** Add File: ", "*** Delete File: ", "*** Update File: ")
_LINES = (*FILES, "*** Move to: ", "*** End of File", "*** End Patch", "@@ ", "@@", "+ x", "-é", "src/a.py")
_TOKENS = (*(bytes([byte]) for byte in range(256)), b"\\n", *(line.encode() for line in _LINES), b"")
VOCABULARY = Vocabulary(_TOKENS, stop_token_ids=(len(_TOKENS) - 1,))


def read_patch(text):
    """The kinds of lines of a patch.

    Raises:
        ValueError: it is no patch.
    """
    lines = text.removesuffix("\n").split("\n")
    if lines[0] != "*** Begin Patch" or lines[-1] != "*** End Patch" or len(lines) < 3:
        raise ValueError("a patch stands between *** Begin Patch and *** End Patch")
    found, before = [], "begin"
    for line in lines[1:-1]:
        kind = next((kind for kind in (*FILES, "*** Move to: ") if line.startswith(kind) and line != kind), None)
        kind = kind or (line if line in ("*** End of File", "@@") else "@@ " if line.startswith("@@ ") else line[:1])
        may_follow = {
            FILES[0]: before not in FILES[:1],
            FILES[1]: before not in FILES[:1],
            FILES[2]: before not in FILES[:1],
            "*** Move to: ": before == FILES[2],
            "*** End of File": before not in (*FILES[:2], "begin", "*** End of File", "added"),
        }
        is_added = kind == "+" and before in (FILES[0], "added")
        in_update = before not in ("begin", *FILES[:2], "added", "*** End of File")
        if not may_follow.get(kind, is_added or (kind in ("@@", "@@ ", "+", "-", " ") and in_update)):
            raise ValueError(f"{line!r} may not follow a line of the kind {before!r}")
        before = "added" if is_added else kind
        found.append(before)
    if not found or before == FILES[0]:
        raise ValueError("a patch has a file, and an added file has a line")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\n-b\n*** End Patch",
        "*** Begin Patch\n*** Delete File: a\n b\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\n+b\n*** Move to: c\n*** End Patch",
        "*** Begin Patch\n*** Update File: a\n*** End of File\n+b\n*** End Patch",
    ],
)
def test_what_is_no_patch_is_neither_generated_nor_read(text):
    params = StructuredOutputsParams(tools=[TOOL], tool_choice="required")
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    written = params.call_format.write("apply_patch", {"input": text})
    assert not grammar.accept_tokens("", [*written.encode(), *VOCABULARY.stop_token_ids])
    with pytest.raises(ValueError, match=r"a patch|may not follow"):
        read_patch(text)


@pytest.mark.parametrize("tool_format", ["hermes", "qwen_3_coder"])
def test_drawn_patches_parse(tool_format, num_cases):
    params = StructuredOutputsParams(tools=[TOOL], tool_choice="required", tool_format=tool_format)
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    walker, rng, kinds = MaskWalker(VOCABULARY), random.Random(tool_format), Counter()
    ends = [b"+ x", b"src/a.py", b"\\n", b"\n", b"*** End Patch", b"</parameter>", params.call_format.end.encode()]
    number = num_cases(20, long=500)
    for i in range(number):
        text = walker.draw(grammar, ("longest", "uniform", "rare")[i % 3], rng, 60, ends)
        assert text is not None
        (call,) = params.parse_tool_calls(text.decode())[:1]
        kinds.update(read_patch(call.value))
    assert set(FILES) <= kinds.keys()
    assert sum(kinds.values()) > number
