"""Requests that SmolLM2-135M-Instruct answers rightly."""

from dataclasses import dataclass, field
from typing import Any

OFFLINE = {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}, "num_gpu_blocks_override": 64}


def object_of(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def messages_of(*turns):
    """Messages of a user and an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(turns)]


@dataclass
class Case:
    """A request.

    Attributes:
        messages: the chat.
        answer: what the model says; an object is compared as JSON.
        constraint: that of the answer.
        reasoning: what the model thinks before, if the request asks for it.
    """

    messages: list[dict[str, str]]
    answer: Any
    constraint: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""


PERSON = object_of(name={"type": "string"}, age={"type": "integer"}, city={"type": "string"})
EQUATION = 'root ::= number " + " number " = " number\nnumber ::= [0-9]+'
QUERY = """
root ::= "SELECT " column " FROM users WHERE " column " " ("<" | "=" | ">") " " [0-9]+ ";"
column ::= "name" | "age"
"""
THOUGHTS = messages_of(
    "Ann has 3 apples and buys 2 more. How many apples does she have?",
    '<think>Ann has 3 apples and buys 2 more: 3 + 2 = 5.</think>{"answer": 5}',
    "Ben has 4 pens and buys 5 more. How many pens does he have?",
    '<think>Ben has 4 pens and buys 5 more: 4 + 5 = 9.</think>{"answer": 9}',
    "Tom has 2 books and buys 6 more. How many books does he have?",
)
CASES = {
    "person": Case(
        messages_of("Extract the person as JSON (name, age, city): Maria Lopez is 34 years old and lives in Madrid."),
        {"name": "Maria Lopez", "age": 34, "city": "Madrid"},
        {"json": PERSON},
    ),
    "another person": Case(
        messages_of("Extract the person as JSON (name, age, city): Tom Becker is 52 years old and lives in Berlin."),
        {"name": "Tom Becker", "age": 52, "city": "Berlin"},
        {"json": PERSON},
    ),
    "color": Case(messages_of("What color is the sky on a clear day?"), "blue", {"choice": ["green", "blue", "red"]}),
    "date": Case(
        messages_of("Write the date March 15, 2024 as YYYY-MM-DD."), "2024-03-15", {"regex": r"\d{4}-\d{2}-\d{2}"}
    ),
    "equation": Case(messages_of("What is 2 + 3? Answer with the equation."), "2 + 3 = 5", {"grammar": EQUATION}),
    "query": Case(
        messages_of("Write a SQL query for the names of users older than 30."),
        "SELECT name FROM users WHERE age > 30;",
        {"grammar": QUERY},
    ),
    "reasoning": Case(
        [{"role": "system", "content": "Think first, then answer as JSON."}, *THOUGHTS],
        {"answer": 8},
        {"json": object_of(answer={"type": "integer"})},
        "Tom has 2 books and buys 6 more: 2 + 6 = 8.",
    ),
    "free text": Case(
        messages_of("What is the capital of France? Answer in one sentence."), "The capital of France is Paris."
    ),
}


def tool(name, description, **parameters):
    function = {"name": name, "description": description, "parameters": object_of(**parameters)}
    return {"type": "function", "function": function | {"strict": True}}


TOOLS = [
    tool("add", "Add two numbers.", a={"type": "integer"}, b={"type": "integer"}),
    tool("get_weather", "Get the weather of a city.", city={"type": "string"}),
]
CALLS = messages_of(
    "What is 3 plus 5?",
    '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 5}}\n</tool_call>',
    "Is it cold in Oslo?",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
)
TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [
            {
                "begin": f'<tool_call>\n{{"name": "{each["function"]["name"]}", "arguments": ',
                "content": {"type": "json_schema", "json_schema": each["function"]["parameters"]},
                "end": "}\n</tool_call>",
            }
            for each in TOOLS
        ],
    },
}


def prompt_of(tokenizer, case):
    """The prompt of a case, which ends the reasoning unless the model has to think."""
    return tokenizer.apply_chat_template(
        case.messages, tokenize=False, add_generation_prompt=True, enable_thinking=bool(case.reasoning)
    )
