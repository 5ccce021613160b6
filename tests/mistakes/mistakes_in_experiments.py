"""Mistakes in cells, claims, tables and in going on."""

from __future__ import annotations

from trying import Mistake

CELLS = "tests/experiments/test_experiment_cells.py"
CLAIMS = "tests/experiments/test_experiment_claims.py"
RESULTS = "tests/experiments/test_experiment_results.py"
RUNS = "tests/experiments/test_experiment_runs.py"

IN_EXPERIMENTS = (
    Mistake(
        "prior-of-a-cell-forgotten",
        "experiments/cells.py",
        "name not in defaults or value != defaults[name]",
        'name != "prior" and (name not in defaults or value != defaults[name])',
        (CELLS,),
    ),
    Mistake(
        "seed-of-a-cell-not-that-of-its-ensemble",
        "experiments/image_cells.py",
        "cell.members, seed=cell.seed)",
        "cell.members, seed=cell.seed + 1)",
        (f"{RUNS}::test_a_cell_is_what_fit_and_the_metrics_give",),
    ),
    Mistake(
        "options-of-a-cell-ignored",
        "experiments/cell_methods.py",
        "prior=cell.prior, **options)",
        "prior=cell.prior)",
        (f"{RUNS}::test_the_options_of_a_cell_reach_its_training",),
    ),
    Mistake(
        "claims-not-paired",
        "experiments/claims.py",
        "(first[seed] - second[seed]) for seed in first if seed in second",
        "(a - b) for a, b in zip(sorted(first.values()), sorted(second.values(), reverse=True))",
        (CLAIMS,),
    ),
    Mistake(
        "claims-in-the-wrong-direction",
        "experiments/claims.py",
        "-1.0 if lower_is_better",
        "1.0 if lower_is_better",
        (CLAIMS,),
    ),
    Mistake(
        "error-of-a-mean-not-over-the-root-of-n",
        "experiments/groups.py",
        "self.std / math.sqrt(self.n)",
        "self.std / self.n",
        (CLAIMS,),
    ),
    Mistake(
        "difference-from-the-paper-turned-round",
        "report/score_tables.py",
        "self.ours.mean - self.paper",
        "self.paper - self.ours.mean",
        (CLAIMS,),
    ),
    Mistake(
        "a-damaged-result-deleted",
        "experiments/running.py",
        'path.replace(path.with_suffix(".damaged"))',
        "path.unlink()",
        (f"{RUNS}::test_a_damaged_file_is_put_aside_and_its_cell_run_again",),
    ),
    Mistake(
        "a-stopped-training-begins-anew",
        "experiments/training_cells.py",
        "            if stopper.stopped:\n                raise",
        "            forget_run(cell, place)\n            if stopper.stopped:\n                raise",
        (f"{RUNS}::test_a_training_goes_on_after_the_time_limit_as_if_nothing_had_happened",),
    ),
    Mistake(
        "corrupted-sets-of-one-severity",
        "experiments/image_data.py",
        "found = corrupt(images, corruption, severity, seed=0)",
        "found = corrupt(images, corruption, 1, seed=0)",
        (f"{RUNS}::test_test_sets_are_made_once",),
    ),
    Mistake(
        "folders-of-a-machine-kept-in-results",
        "experiments/results.py",
        "without_folders(value) if isinstance(value, str) else value",
        "value",
        (RESULTS,),
    ),
)
