"""A diagnosis in a notebook: findings that fold, without a script."""

from markupsafe import Markup

from trimtab.report.diagnosis import Diagnosis
from trimtab.report.html.page import asset, environment
from trimtab.report.outline import facts, fold


def notebook_html(diagnosis: Diagnosis) -> str:
    """The diagnosis for the output of a notebook's cell.

    Args:
        diagnosis: What was found.

    Returns:
        HTML with a style of its own that reaches nothing else on the page; `Diagnosis.to_html` has the charts as well.
    """
    groups, notes = fold(diagnosis)
    template = environment().get_template("fragment.html")
    return template.render(
        diagnosis=diagnosis,
        groups=groups,
        notes=notes,
        rows=list(facts(diagnosis.run)),
        style=Markup(asset("fragment.css")),
    )
