"""A loop in which a model calls tools: its calls are always complete and valid.

    python examples/tool_loop.py

The demo model has random weights, so its calls make no sense. With another model, write
the tools and their results into the prompt with its chat template.
"""

from typing import Literal

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers.generation import generate


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
    text = "Use the tools."
    with StructuredOutputManager(tokenizer, model.config.vocab_size) as manager:
        for turn in range(3):
            options = {"params": params, "manager": manager, "do_sample": True, "seed": turn}
            made = generate(model, tokenizer, text, max_new_tokens=400, **options)
            for call in params.parse_tool_calls(made.texts[0]):
                result = call.run()
                print(f"{call.name}({call.arguments}) = {result}")
                text += f"\n{call.name} returned {result}"
    # END


if __name__ == "__main__":
    main()
