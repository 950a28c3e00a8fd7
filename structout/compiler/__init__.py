"""Compiles constraints in the background: each once, in fair turns, within a deadline, remembered within bounds."""

from structout.compiler.outcomes import HasMemory, copy_error
from structout.compiler.service import CompileService, CompileStats
from structout.compiler.turns import Ticket

__all__ = ["CompileService", "CompileStats", "HasMemory", "Ticket", "copy_error"]
