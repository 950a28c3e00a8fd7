"""A loop in which a model calls tools: its calls are always complete and valid.

python examples/tool_loop.py
"""

from typing import Literal

from structout import StructuredOutputsParams, generate
from structout.cli.demo_model import load_demo_model


# BEGIN
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def paint(color: Literal["red", "green"], coats: int = 1) -> str:
    """Paint the fence."""
    return f"{coats} x {color}"


def main() -> None:
    model, tokenizer, _ = load_demo_model()
    params = StructuredOutputsParams(tools=[add, paint], tool_choice="required", parallel_tool_calls=False)
    messages = []
    for question in ("What is 17 plus 25?", "Please paint the fence green, with 3 coats.", "What is 5 plus 8?"):
        messages.append({"role": "user", "content": question})
        made = generate(model, tokenizer, messages, params=params, describe=True)
        messages.append({"role": "assistant", "content": made.texts[0]})
        for call in made.parsed[0]:
            result = call.run()
            print(f"{call.name}({call.arguments}) = {result}")
            messages.append({"role": "tool", "content": str(result)})
    # END


if __name__ == "__main__":
    main()
