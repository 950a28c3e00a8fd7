"""sharded_masked_sample and all_gather_bitmask in real process groups: the bits of the whole, whatever the cut."""

import pytest
import rank_programs
import ranks

WORLD_SIZES = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_draws_what_one_would_draw_alone(world_size):
    different = ranks.run(world_size, rank_programs.compare_with_the_whole, world_size, 150, 3000)
    assert different == [[]] * world_size
