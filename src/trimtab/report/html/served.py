"""The page as a server gives it: the same page, with a script that follows a run which trains."""

from dataclasses import asdict, dataclass
from typing import Any

from trimtab._messages import say
from trimtab.report.charts import Charts
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.html.page import contents, environment, numbers, shell
from trimtab.report.words import clean


@dataclass(frozen=True, slots=True)
class Live:
    """How a run stands.

    Attributes:
        version: Changes with every change of what there is to tell.
        state: "following", "still", "over" or "lost": how it is shown.
        text: The same in words.
        far: How far the run is, in words.
        again: Milliseconds until it is worth asking again; None where nothing more will come.
    """

    version: str
    state: str
    text: str
    far: str
    again: int | None


def served_page(diagnosis: Diagnosis, charts: Charts, live: Live) -> tuple[str, str]:
    """The page that follows a run.

    Args:
        diagnosis: What was found so far.
        charts: What there is to see so far.
        live: How the run stands.

    Returns:
        HTML, and its content-security policy: that of a page that is a file, and it may ask its own server.
    """
    words = {
        "lost": say("The server does not answer: was `trimtab view` ended? What is shown is the last that it told."),
        "refused": say("Another `trimtab view` answers here now: open the address that it has printed."),
    }
    data = {**numbers(diagnosis, charts), "live": asdict(live), "words": words}
    around = shell(clean(diagnosis.run.name), data, more_scripts=("live.js",), directives="connect-src 'self'")
    page = environment().get_template("served.html")
    return page.render(live=live, **contents(diagnosis, charts), **around), around["policy"]


def served_changes(diagnosis: Diagnosis, charts: Charts) -> dict[str, Any]:
    """What a page that is open puts in place of what it shows.

    Args:
        diagnosis: What was found so far.
        charts: What there is to see so far.

    Returns:
        "html", what `served_page` has in its header and main part, and "charts".
    """
    html = environment().get_template("page.html").render(layout="bare.html", **contents(diagnosis, charts))
    return {"html": html, **numbers(diagnosis, charts)}
