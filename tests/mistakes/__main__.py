"""`python tests/mistakes [WORDS]`: try all mistakes, or those whose name or file has one of the words in it."""

from __future__ import annotations

import sys

from all_mistakes import MISTAKES
from trying import PASSED, SOURCE, Mistake, attempt, problem, run_tests


def main(words: list[str]) -> int:
    chosen = [m for m in MISTAKES if not words or any(word in f"{m.name} {m.file}" for word in words)]
    if not chosen:
        print(f"no mistake has {' or '.join(words)} in its name or file")
        return 2
    if complaints := [complaint for mistake in chosen if (complaint := problem(mistake))]:
        print("\n".join(complaints))
        return 2
    code, output = run_tests(sorted({test for mistake in chosen for test in mistake.tests}), SOURCE)
    if code != PASSED:
        print(f"{output}\nthe tests fail without any mistake; repair them first")
        return 2
    unnoticed = [mistake for mistake in chosen if not noticed(mistake)]
    print(f"noticed {len(chosen) - len(unnoticed)} of {len(chosen)}")
    return 1 if unnoticed else 0


def noticed(mistake: Mistake) -> bool:
    outcome = attempt(mistake)
    print(f"{'noticed  ' if outcome.noticed else 'UNNOTICED'} {mistake.name}: {outcome.says}", flush=True)
    return outcome.noticed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
