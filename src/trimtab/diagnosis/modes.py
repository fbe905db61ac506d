"""What several rules say of training and evaluation mode: the losses by mode as evidence."""

from trimtab._messages import say
from trimtab.diagnosis.view import View
from trimtab.report import Evidence


def evidence_by_mode(view: View) -> tuple[Evidence, ...]:
    """The loss in evaluation mode beside the one in training mode and the one with statistics computed anew.

    Args:
        view: The record.

    Returns:
        Two pieces of evidence; none for a run that was watched only.
    """
    losses = view.evaluation
    if not losses:
        return ()
    return (
        Evidence(say("loss in evaluation mode, beside that in training mode"), losses["evaluation"], losses["train"]),
        Evidence(say("the same with running statistics computed anew"), losses["recalibrated"], losses["train"]),
    )
