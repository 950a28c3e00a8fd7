"""Structured output in vLLM's offline engine, with structout's plugin.

    python examples/vllm_offline.py MODEL

With structout installed, vLLM's own API is all it takes.
"""

import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

ORDER = {
    "type": "object",
    "properties": {"item": {"enum": ["tea", "coffee"]}, "cups": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["item", "cups"],
    "additionalProperties": False,
}


def main(model: str) -> None:
    llm = LLM(
        model,
        speculative_config={  # jump-forward: the tokens that a grammar forces become drafts
            "method": "custom_class",
            "model": "structout.integrations.vllm.proposer.Proposer",
            "num_speculative_tokens": 8,
        },
        max_model_len=512,
    )
    constraints = [StructuredOutputsParams(json=ORDER), StructuredOutputsParams(regex=r"(yes|no), \d{1,3}%")]
    params = [SamplingParams(max_tokens=64, temperature=0.8, structured_outputs=c) for c in constraints]
    for output in llm.generate(["An order: ", "Will it rain? "], params):
        print(output.outputs[0].text)


if __name__ == "__main__":
    main(sys.argv[1])
