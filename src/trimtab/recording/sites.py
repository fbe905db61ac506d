"""The table of sites: every place that has been measured gets a number once."""

from trimtab.recording.record import Kind


class SiteTable:
    """Numbers for sites, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._index: dict[tuple[int, str, Kind], int] = {}
        self._new: list[tuple[int, int, str, str]] = []

    def __len__(self) -> int:
        return len(self._index)

    def index(self, model: int, name: str, kind: Kind) -> int:
        """The number of a site, a new one where it has none yet."""
        key = (model, name, kind)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self._index)
            self._new.append((found, model, name, kind))
        return found

    def take_new(self) -> list[tuple[int, int, str, str]]:
        """The sites that the store does not know yet, as its rows; they count as known from now on."""
        new, self._new = self._new, []
        return new
