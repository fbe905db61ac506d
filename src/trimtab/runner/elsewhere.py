"""An error that came about in another process, as the user would have seen it there."""

from trimtab.runner.script import PACKAGE

MACHINERY = ("concurrent", "loky", "joblib", "cloudpickle", "distributed")
"""Packages whose frames only brought a run to its worker."""


class ScriptFailedError(Exception):
    """The user's script has failed before its first training step.

    Args:
        text: What it printed of it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def traceback_elsewhere(error: BaseException) -> str:
    """The traceback of an error that a worker has sent, without the frames that are not the user's.

    Args:
        error: As it arrived.

    Returns:
        The text; "" where it did not come from another process, or is no error of the user's.
    """
    if isinstance(error, ScriptFailedError):
        return error.text
    cause = error.__cause__
    if type(cause).__name__ != "_RemoteTraceback":
        return ""
    return users_part(str(cause).strip().strip('"').strip("\n"))


def users_part(text: str) -> str:
    """A printed traceback without trimtab's frames and those before them.

    Args:
        text: As Python prints it.

    Returns:
        The same with the user's frames and those of the libraries they called; "" where no frame is left.
    """
    kept: list[str] = []
    dropping, begun, frames = False, False, 0
    for line in text.splitlines():
        if line.startswith('  File "'):
            file = line.split('"')[1]
            ours = file.startswith(PACKAGE) or (
                not begun and any(f"/{name}/" in file.replace("\\", "/") for name in MACHINERY)
            )
            dropping = ours
            begun = begun or not ours
            frames += not ours
        elif not line.startswith(" "):
            dropping = False
            begun = begun and not line.startswith("Traceback")
        if not dropping:
            kept.append(line)
    return "\n".join(kept) if frames else ""
