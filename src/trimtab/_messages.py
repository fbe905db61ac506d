"""The one catalogue of short messages: English is the key, a translation is a gettext file."""

import gettext
import os
from pathlib import Path

LOCALES = Path(__file__).parent / "locales"


def _catalogue() -> gettext.NullTranslations:
    language = os.environ.get("TRIMTAB_LANG")
    languages = [language] if language else None
    return gettext.translation("trimtab", LOCALES, languages=languages, fallback=True)


def say(message: str, /, **values: object) -> str:
    """The message in the user's language, with its `{fields}` filled in."""
    return _catalogue().gettext(message).format(**values)
