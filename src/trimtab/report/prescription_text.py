"""A prescription as text: what to change and how sure that is, then everything that was tried."""

from trimtab.report.prescription import Prescription


def render_prescription(prescription: Prescription) -> str:
    """The prescription as text."""
    return (
        "\n".join(
            f"{'* ' if t.proved else '  '}{t.repair.summary}  {t.score} base {t.baseline} rnd {t.random} {t.interval} {t.interval_random} n={t.seeds} {t.why}"
            for t in prescription.trials
        )
        + f"\nsteps {prescription.steps} of {prescription.run_steps}"
    )
