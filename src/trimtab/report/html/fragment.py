"""A diagnosis in a notebook: findings that fold, without a script."""

from markupsafe import Markup

from trimtab.report.diagnosis import Diagnosis
from trimtab.report.html.page import asset, environment
from trimtab.report.outline import facts, fold
from trimtab.report.prescription import Prescription


def notebook_html(diagnosis: Diagnosis, *, prescription: Prescription | None = None) -> str:
    """The diagnosis for the output of a notebook's cell.

    Args:
        diagnosis: What was found.
        prescription: What was tried against it.

    Returns:
        HTML with a style of its own that reaches nothing else on the page; `Diagnosis.to_html` has the charts as well.
    """
    groups, notes = fold(diagnosis)
    template = environment().get_template("fragment.html")
    return template.render(
        diagnosis=diagnosis,
        prescription=prescription,
        groups=groups,
        notes=notes,
        rows=list(facts(diagnosis.run)),
        style=Markup(asset("fragment.css")),
    )
