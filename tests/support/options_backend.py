"""A backend that reports the options it was given, and the process in which it
compiled.

It is in a module of its own, so that a compile process can import it.
"""

import os
from dataclasses import replace

from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.support import Support
from structout.params import Constraint, StructuredOutputOptions


class OptionsBackend(LlguidanceBackend):
    can_isolate = True

    def compile_native(self, constraint):
        return f"{constraint.spec}\n{constraint.whitespace_pattern}\n{constraint.lenient}\n{os.getpid()}"

    def serialize(self, native, max_bytes):
        return native.encode()

    def load_grammar(self, constraint, serialized, stop_token_ids=None):
        compiled = self.compile(Constraint(StructuredOutputOptions.REGEX, "a"), stop_token_ids)
        return replace(compiled, weakened=tuple(serialized.decode().split("\n")))


def slow_support(constraint):
    return Support(is_slow=True)
