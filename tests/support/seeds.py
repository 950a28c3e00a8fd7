"""Random tests that run once for each of many seeds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable


def for_each_seed(default: int, *, long: int | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with ``seed`` from 0 on. A failure names its seed.

    One test in place of many parametrized ones: fixtures are shared by all seeds.

    Args:
        default: The number of seeds.
        long: The number of seeds under ``--long``, if it differs.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        def run_all_seeds(**fixtures: object) -> None:
            num_seeds = fixtures["num_cases"](default, long=default if long is None else long)
            arguments = {name: value for name, value in fixtures.items() if name in parameters}
            for seed in range(num_seeds):
                try:
                    test(seed=seed, **arguments)
                except BaseException as error:
                    error.add_note(f"seed {seed} of {num_seeds}")
                    raise

        names = [name for name in parameters if name != "seed"]
        names += [] if "num_cases" in names else ["num_cases"]
        run_all_seeds.__signature__ = inspect.Signature(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names
        )
        return run_all_seeds

    return decorate
