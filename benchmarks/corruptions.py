"""Images per second of every corruption on one core, and optionally the time of a whole set on many.

OMP_NUM_THREADS=1 python benchmarks/corruptions.py --json results.json
python benchmarks/corruptions.py --whole-set --workers 16
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from forde.corruptions.bench import measure, whole_set_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the fastest counts")
    parser.add_argument("--whole-set", action="store_true", help="time 19 x 5 x 10,000 images instead")
    parser.add_argument("--workers", type=int, default=1, help="workers for --whole-set")
    parser.add_argument("--device", default="cpu", help="where --whole-set computes")
    options = parser.parse_args()

    if options.whole_set:
        seconds = whole_set_seconds(workers=options.workers, device=options.device)
        print(f"19 x 5 x 10,000 images of 32 x 32 on {options.device}: {seconds:.1f} s")
        numbers: dict[str, object] = {"workers": options.workers, "device": options.device}
    else:
        speeds, seconds = measure(repeats=options.repeats)
        for name, rate in speeds:
            print(f"{name:20s} {rate:9,.0f} images/s")
        print(f"19 x 5 x 10,000 images of 32 x 32 on one core: {seconds:.1f} s")
        numbers = {"images_per_second": dict(speeds)}
    if options.json:
        options.json.write_text(json.dumps({**numbers, "whole_set_seconds": seconds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
