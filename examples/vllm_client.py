"""A client of a vLLM server that runs structout's plugin.

    vllm serve MODEL --port 8000
    python examples/vllm_client.py http://localhost:8000

With structout installed in the server's environment, clients of the OpenAI API change
nothing.
"""

import json
import sys

from openai import BadRequestError, OpenAI

ORDER = {
    "type": "object",
    "properties": {"item": {"enum": ["tea", "coffee"]}, "cups": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["item", "cups"],
    "additionalProperties": False,
}


def main(server: str) -> None:
    client = OpenAI(base_url=f"{server}/v1", api_key="none")
    model = client.models.list().data[0].id
    prompt = "I would like two cups of tea, please. Answer as JSON with item and cups."
    messages = [{"role": "user", "content": prompt}]
    chunks = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=64,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER}},
        stream=True,
    )
    print(json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks)))
    try:
        client.chat.completions.create(
            model=model, messages=messages, extra_body={"structured_outputs": {"regex": "(yes|no"}}
        )
    except BadRequestError as error:
        print(error.message)  # says what is wrong with the regular expression


if __name__ == "__main__":
    main(sys.argv[1])
