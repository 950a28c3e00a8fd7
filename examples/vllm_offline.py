"""Structured output in vLLM's offline engine, with structout's plugin.

    python examples/vllm_offline.py MODEL

With structout installed, vLLM's own API is all it takes.
"""

import json
import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

ORDER = {
    "type": "object",
    "properties": {"item": {"enum": ["tea", "coffee"]}, "cups": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["item", "cups"],
    "additionalProperties": False,
}
DATE = r"\d{4}-\d{2}-\d{2}"


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
    prompt = "I would like two cups of tea, please. Answer as JSON with item and cups."
    requests = {
        prompt: StructuredOutputsParams(json=ORDER),
        "Write the date March 15, 2024 as YYYY-MM-DD.": StructuredOutputsParams(regex=DATE),
    }
    chats = [[{"role": "user", "content": prompt}] for prompt in requests]
    greedy = {"temperature": 0, "max_tokens": 64}
    params = [SamplingParams(**greedy, structured_outputs=each) for each in requests.values()]
    order, date = (output.outputs[0].text for output in llm.chat(chats, params))
    print(json.loads(order))
    print(date)


if __name__ == "__main__":
    main(sys.argv[1])
