"""Put a text on a stream, whatever its encoding can show."""

from typing import TextIO

RULE = "─"
"""Of which lines across the page are made; an escape for each would make them six times as long."""


def write(text: str, stream: TextIO) -> None:
    """Write a text and the end of its line at once; what the stream's encoding lacks is a dash for a rule and an escape else.

    Args:
        text: What to write.
        stream: Standard output, standard error, or what stands in their place.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        RULE.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace(RULE, "-")
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
