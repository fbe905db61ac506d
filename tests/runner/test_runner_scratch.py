"""A run's own folder and its own random numbers."""

import os

from trimtab.runner import scratch as scratches
from trimtab.runner.elsewhere import users_part
from trimtab.runner.scratch import SMALL, scratch


def fill(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "small.txt").write_text("mine")
    (folder / "large.bin").write_bytes(b"0" * (SMALL + 1))
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "file").write_text("hidden")
    (folder / ".trimtab").mkdir()


def test_small_files_are_copied_and_large_ones_linked(tmp_path):
    fill(tmp_path)
    with scratch(str(tmp_path)) as place:
        assert sorted(os.listdir(place)) == [".hidden", "large.bin", "sub"]
        with open(os.path.join(place, "sub", "small.txt"), "w") as file:
            file.write("changed")
        with open(os.path.join(place, "sub", "new.txt"), "w") as file:
            file.write("new")
        assert os.path.islink(os.path.join(place, "large.bin"))
        assert os.path.getsize(os.path.join(place, "large.bin")) == SMALL + 1
        assert os.path.islink(os.path.join(place, ".hidden"))
    assert not os.path.exists(place)
    assert (tmp_path / "sub" / "small.txt").read_text() == "mine"
    assert os.listdir(tmp_path / "sub") == ["small.txt"]
    assert (tmp_path / ".hidden" / "file").read_text() == "hidden"  # what was linked is not deleted


def test_a_large_folder_is_linked_entry_by_entry(tmp_path, monkeypatch):
    fill(tmp_path)
    monkeypatch.setattr(scratches, "MANY", 2)
    with scratch(str(tmp_path)) as place:
        assert os.path.islink(os.path.join(place, "sub"))
        with open(os.path.join(place, "new.txt"), "w") as file:
            file.write("new")
    assert not (tmp_path / "new.txt").exists()
    assert (tmp_path / "sub" / "small.txt").read_text() == "mine"


def test_seeds_are_raised_and_what_is_never_seeded_is_seeded(shell):
    shell.write(
        "seeds.py",
        """
        import random, sys
        import numpy as np
        import torch
        from trimtab.runner.reseeding import vary_seeds
        vary_seeds(int(sys.argv[1]))
        print(random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng().random())
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        print(random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng(3).random())
        """,
    )
    shell.write(
        "plain.py",
        """
        import random
        import numpy as np
        import torch
        for seed in (0, 2, 3, 5):
            random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
            print(random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng(seed).random())
        """,
    )
    zero, two, three, five = shell.plain("plain.py").out.splitlines()
    assert shell.plain("seeds.py", "0").out.splitlines() == [zero, three]
    assert shell.plain("seeds.py", "2").out.splitlines() == [two, five]


def test_a_traceback_from_elsewhere_keeps_the_users_frames():
    import trimtab.runner.script

    ours = trimtab.runner.script.__file__
    text = "\n".join([
        "Traceback (most recent call last):",
        '  File "/lib/python3/site-packages/loky/process_executor.py", line 1, in run',
        "    call()",
        f'  File "{ours}", line 5, in run',
        "    exec(code)",
        "    ^^^^",
        '  File "/somewhere/train.py", line 7, in <module>',
        "    f()",
        '  File "/lib/python3/concurrent/futures/thread.py", line 2, in f',
        "    g()",
        "ValueError: mine",
    ])
    kept = users_part(text).splitlines()
    assert kept[0] == "Traceback (most recent call last):"
    assert [line for line in kept if "File" in line] == [text.splitlines()[6], text.splitlines()[8]]
    assert kept[-1] == "ValueError: mine"
    assert users_part("\n".join(text.splitlines()[:6])) == ""


def test_what_a_run_writes_over_is_its_own(shell):
    """Files that are too large to be copied, and what lies in linked folders, stay the user's."""
    shell.write(
        "writes.py",
        """
        import os, shutil
        import torch
        from trimtab.runner import scratch as scratches, sparing
        scratches.SMALL = 1
        place = os.path.realpath("mine")
        with scratches.scratch(place) as folder:
            os.chdir(folder)
            sparing.spare(os.getcwd())
            assert open("read.bin").read() == "mine" and os.path.islink("read.bin")
            open("added.bin", "a").write("+")
            assert open("added.bin").read() == "mine+"
            with open("within.bin", "r+") as file:
                file.write("M")
            assert open("within.bin").read() == "Mine"
            open("new.bin", "w").write("new")
            torch.save({"a": 1}, "model.pt")
            assert torch.load("model.pt") == {"a": 1}
            open(".hidden/deep/cache.bin", "w").write("over")
            os.remove(".hidden/gone.bin")
            os.rename(".hidden/moved.bin", "moved.bin")
            os.makedirs(".hidden/made/deep")
            assert sorted(os.listdir(".hidden")) == ["deep", "made", "whole"]
            shutil.rmtree(".hidden/whole")
            os.truncate("cut.bin", 1)
            open("/dev/null", "w").write("nothing")
        """,
    )
    mine = shell.folder / "mine"
    files = ("read.bin", "added.bin", "within.bin", "model.pt", "cut.bin")
    files += tuple(f".hidden/{name}" for name in ("deep/cache.bin", "gone.bin", "moved.bin", "whole/kept.bin"))
    for name in files:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("mine")
    ended = shell.plain("writes.py")
    assert ended.status == 0, ended.err
    assert sorted(str(p.relative_to(mine)) for p in mine.rglob("*") if p.is_file()) == sorted(files)
    assert {(mine / name).read_text() for name in files} == {"mine"}
