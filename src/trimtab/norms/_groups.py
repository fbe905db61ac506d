"""How many groups a GroupNorm of a layer should have."""

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_whole

MOST_GROUPS = 32  # of Wu & He 2018, arXiv:1803.08494, and of nearly every project since
LEAST_CHANNELS = 4  # per group, where channels are all that a group has
LEAST_ELEMENTS = 16  # per group, where positions are counted too: below, one value moves its own statistics by over 6 %


def group_count(channels: int, positions: int = 1, most: int = MOST_GROUPS) -> int:
    """The largest number of groups that divides the channels and leaves enough values to each.

    A GroupNorm(32, C) fails unless 32 divides C, and with one value per group it erases its input without an error.

    Args:
        channels: Number of channels, C.
        positions: Pixels or time steps per channel and sample, 1 if not known.
        most: Largest number of groups.

    Returns:
        The largest divisor of C up to `most` that leaves 4 channels per group, or 16 values; 1 if there is none.

    Raises:
        NormalizationError: If a number is less than 1.
    """
    require_whole(channels=channels, positions=positions, most=most)
    for groups in range(min(most, channels), 0, -1):
        size, rest = divmod(channels, groups)
        if not rest and (size >= LEAST_CHANNELS or (positions > 1 and size * positions >= LEAST_ELEMENTS)):
            return groups
    return 1


def require_groups(groups: int, channels: int, where: str) -> None:
    """Let only numbers of groups pass that divide the channels.

    Args:
        groups: Number of groups.
        channels: Number of channels.
        where: Which layer, for the message.

    Raises:
        NormalizationError: If they do not.
    """
    if groups < 1 or channels % groups:
        divisors = ", ".join(str(g) for g in range(1, min(channels, 64) + 1) if channels % g == 0)
        raise NormalizationError(
            f"groups is {groups}, which does not divide the {channels} channels of {where}; "
            f"its divisors are {divisors}; leave groups out to choose one per layer"
        )
