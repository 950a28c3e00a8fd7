"""What the command line asks for as a constraint, and how a finished text is judged without the mask that made it."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from structout.errors import GrammarError
from structout.params import StructuredOutputsParams
from structout.scheduler.manager import StructuredOutputManager

Check = Callable[[str], str | None]  # what is wrong with a text, or None


class UserError(Exception):
    """Something the person at the keyboard can mend: one line, exit status 2."""


def one_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def read_constraint(arguments: argparse.Namespace) -> StructuredOutputsParams:
    params = StructuredOutputsParams(
        json=None if arguments.json_schema is None else _read(arguments.json_schema),
        regex=arguments.regex,
        choice=arguments.choice,
        grammar=None if arguments.grammar is None else _read(arguments.grammar),
    )
    try:
        params.validate()
    except GrammarError as error:
        raise UserError(f"{arguments.json_schema or arguments.grammar or 'constraint'}: {error}") from error
    return params


def early_check(params: StructuredOutputsParams) -> Check | None:
    """The check for every kind that has a judge of its own, which may refuse the constraint; None for grammars."""
    if params.json is not None:
        return _json_check(params)
    if params.regex is not None:
        return _regex_check(params.regex)
    if params.choice is not None:
        choices = params.choice
        return lambda text: None if text in choices else "is none of the choices"
    return None


def replay_check(params: StructuredOutputsParams, manager: StructuredOutputManager) -> Check:
    """A text is spelt anew, with the shortest tokens, and must be a whole text for a fresh copy of the grammar."""

    def check(text: str) -> str | None:
        tokens = manager.vocabulary.spell(text)
        if tokens is None:
            return "cannot be spelt with the model's tokens"
        replayed = [*tokens, manager.vocabulary.stop_token_ids[0]]
        try:
            manager.add_request("replay", params, output_token_ids=replayed)
            manager.wait_ready("replay")
        except GrammarError:
            return "does not match the grammar"
        finally:
            manager.finish_request("replay")
        return None

    return check


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _json_check(params: StructuredOutputsParams) -> Check:
    try:
        import jsonschema
    except ImportError as error:
        raise UserError(
            "checking JSON needs jsonschema; from structout's checkout: pip install --no-build-isolation '.[generate]'"
        ) from error
    schema = json.loads(params.constraint().spec)
    try:
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UserError(f"not a valid JSON Schema: {error.message} (at {error.json_path})") from error
    except RecursionError as error:
        raise UserError("the JSON schema is nested too deeply for jsonschema to check it") from error
    except Exception as error:
        raise UserError(f"jsonschema cannot check this schema: {one_line(error)}") from error

    def check(text: str) -> str | None:
        try:
            error = jsonschema.exceptions.best_match(validator(schema).iter_errors(json.loads(text)))
        except json.JSONDecodeError as problem:
            return f"not JSON ({problem})"
        except Exception as problem:  # what a schema's patterns, references and numbers can make it raise
            raise UserError(f"jsonschema cannot check a text against this schema: {one_line(problem)}") from problem
        return None if error is None else f"does not satisfy the schema ({error.message} at {error.json_path})"

    return check


def _regex_check(regex: str) -> Check:
    try:
        pattern = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"not a regular expression: {one_line(error)}") from error
    return lambda text: None if pattern.fullmatch(text) else "does not match the regular expression"
