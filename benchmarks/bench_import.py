"""Cost of `import trimtab`: CPU time of a fresh process that imports torch, with and without trimtab.

Processes take turns; the figure is the median of the rounds' differences over the median time of `import torch`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

CASES = {
    "import torch": "import torch",
    "import torch, trimtab": "import torch, trimtab",
    "import torch, trimtab; trimtab.watch": "import torch, trimtab; trimtab.watch",
}


def seconds(code: str) -> float:
    """CPU seconds from the interpreter's start to the end of `code`."""
    script = f"{code}\nimport time\nprint(time.process_time())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    for code in CASES.values():  # byte code and the disk cache
        seconds(code)
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(arguments.rounds):
        for name in list(CASES) if number % 2 == 0 else reversed(CASES):
            times[name].append(seconds(CASES[name]))
    base = times["import torch"]
    torch_alone = statistics.median(base)
    result = {}
    for name, values in times.items():
        more = statistics.median(value - one for value, one in zip(values, base, strict=True))
        result[name] = {"seconds": statistics.median(values), "more": more, "ratio": 1 + more / torch_alone}
        print(f"{name:40}{statistics.median(values):8.3f} s {1e3 * more:+8.1f} ms {1 + more / torch_alone:8.3f} times")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
