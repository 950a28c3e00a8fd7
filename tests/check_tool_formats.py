"""Compare what is derived from real chat templates with ``corpus/tool_formats.json``.

The texts of the templates belong to their models and are not kept here. llama.cpp
(models/templates, also in the sources of llama-cpp-python) and TRL (trl/chat_templates)
publish them.

    python tests/check_tool_formats.py llama.cpp=FOLDER trl=FOLDER

prints each difference, and exits with 1 if there is one. With ``--write`` it writes the
file instead.
"""

import json
import sys
from pathlib import Path

from support.chat_templates import facts_of, tokenizer_with

CORPUS = Path(__file__).parent / "corpus" / "tool_formats.json"


def main(arguments: list[str]) -> int:
    sources = [argument.partition("=") for argument in arguments if argument != "--write"]
    if not sources or not all(Path(folder).is_dir() for _, _, folder in sources):
        print(__doc__)
        return 2
    found = {}
    for source, _, folder in sources:
        for path in sorted(Path(folder).glob("*.jinja")):
            if not path.stem.endswith("_training"):  # variants that mark what is trained
                found[f"{source}/{path.stem}"] = facts_of(tokenizer_with(path.read_text()))
    if "--write" in arguments:
        lines = [f"{json.dumps(name)}: {json.dumps(facts, ensure_ascii=False)}" for name, facts in found.items()]
        CORPUS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    known = json.loads(CORPUS.read_text())
    differing = [name for name in known.keys() | found.keys() if known.get(name) != found.get(name)]
    for name in sorted(differing):
        print(f"{name}\n  was {known.get(name)}\n  is  {found.get(name)}")
    silent = sum("writes no tool calls" in facts.get("missing", "") for facts in found.values())
    derived = sum("missing" not in facts for facts in found.values())
    print(f"{derived} derived of {len(found) - silent} that write calls; {silent} write none; {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
