"""The metaschemas of JSON Schema's drafts, reduced to their requirements.

They lack titles, descriptions, defaults and comments. Each file has the documents of
one draft by their URIs.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def metaschemas() -> Mapping[str, str]:
    """The JSON text of each document by its URI."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    documents = {uri: schema for file in files for uri, schema in json.loads(file.read_text("utf-8")).items()}
    return {uri: json.dumps(schema) for uri, schema in documents.items()}
