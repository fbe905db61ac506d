"""Put a text on a stream, whatever its encoding can show."""

from typing import TextIO


def write(text: str, stream: TextIO) -> None:
    """Write a text and the end of its line at once, with escapes for the characters that the stream's encoding lacks.

    Args:
        text: What to write.
        stream: Standard output, standard error, or what stands in their place.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
