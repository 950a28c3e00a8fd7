"""Hunters: random tests that run for as long as they are given.

    make soak SECONDS=600            all hunters, 600 seconds in all
    make soak SECONDS=600 ONLY=draws one of them

Each hunter works through seeds. A finding names the seed that shows it again. Results
go into ``bench/results``, and from there into ``docs/volumes.md``."""
