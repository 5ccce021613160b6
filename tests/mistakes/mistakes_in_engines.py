"""Mistakes in what engines look at before they stack or compile, and in files."""

from trying import Mistake

CODE = "tests/test_members_code.py"
FREEZING = "tests/test_freezing.py"
DURABLE = "tests/reliability/test_durable.py"

IN_ENGINES = (
    Mistake(
        "hooks-are-not-looked-at",
        "step/python_state.py",
        'return f"{found} in member {index}"\n    for name, module',
        "pass\n    for name, module",
        (f"{CODE}::TestMembersThatDiffer",),
    ),
    Mistake(
        "attributes-are-not-compared",
        "step/python_state.py",
        "own, its = attributes(module), attributes(others[name])",
        "own, its = {}, {}",
        (f"{CODE}::TestMembersThatDiffer",),
    ),
    Mistake(
        "a-trace-is-not-made-again",
        "compile/step.py",
        "change = self._code.change() if self.kinds and self._code is not None else None",
        "change = None",
        (f"{CODE}::TestChangesDuringTraining",),
    ),
    Mistake(
        "a-trace-is-not-compared",
        "compile/verifying.py",
        "reason = compare(batch, traced.first, traced.second, merged=False)",
        "reason = None",
        (f"{CODE}::TestAgreement",),
    ),
    Mistake(
        "inputs-are-not-copied",
        "step/runners.py",
        "given = inputs.clone() if copies else inputs",
        "given = inputs",
        ("tests/test_untouched_inputs.py",),
    ),
    Mistake(
        "parts-of-a-batch-all-count-alike",
        "step/accumulated.py",
        "shares = [(own.stop - own.start) / n for own in places]",
        "shares = [1 / self.parts for own in places]",
        ("tests/test_accumulation.py::test_uneven_parts",),
    ),
    Mistake(
        "labels-of-a-part-are-not-counted",
        "step/accumulated.py",
        "self._shares_of_loss([batch.y[own] for own in places]) or shares",
        "shares",
        ("tests/test_accumulation.py::test_four_parts_of_any_loss",),
    ),
    Mistake(
        "priors-are-left-out-of-a-step",
        "step/core.py",
        "objective = objective + (energy if batch.share == 1 else batch.share * energy)",
        "pass",
        ("tests/test_contributing.py",),
    ),
    Mistake(
        "a-missing-gradient-is-sent-as-zeros",
        "distributed/messages.py",
        "torch.tensor([float(a is not None) for a, _ in pairs]",
        "torch.tensor([1.0 for a, _ in pairs]",
        ("tests/distributed/test_messages.py::test_a_missing_gradient_stays_missing",),
    ),
    Mistake(
        "statistics-of-a-part-are-those-of-the-part",
        "double_backward/policy.py",
        "formulas.by_statistics(call, *statistics.next_statistics(call.input.shape[1]))",
        "batch_norm.in_training(call)[0]",
        ("tests/test_part_of_batch.py",),
    ),
    Mistake(
        "padding-counts",
        "step/sources.py",
        "gradient if counts is None else gradient * counts.to(gradient)",
        "gradient",
        ("tests/test_embeddings.py::test_padding_does_not_count",),
    ),
    Mistake(
        "gradients-of-the-first-input-only",
        "step/sources.py",
        "rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)",
        "rows[0]",
        ("tests/test_batches.py::test_gradients_are_of_the_inputs_that_are_named",),
    ),
    Mistake(
        "predictions-write-to-the-inputs",
        "inference/untouched.py",
        "self._copy = self._batch.clone()",
        "self._copy = self._batch",
        ("tests/test_untouched_inputs.py::test_predictions",),
    ),
    Mistake(
        "own-sources-of-random-numbers-are-not-rewound",
        "random_state.py",
        "set_source_state(source, value)",
        "pass",
        (f"{CODE}::TestSourcesOfRandomNumbers",),
    ),
    Mistake(
        "what-was-frozen-is-forgotten",
        "training/snapshots.py",
        '_restore_modes(loop.ensemble, set(state["frozen"]), set(state["evaluating"]))',
        "pass",
        (f"{FREEZING}::test_a_resumed_run_knows_what_was_frozen",),
    ),
    Mistake(
        "evaluation-modes-are-forgotten",
        "ensemble.py",
        "if mode and self.left_in_evaluation:",
        "if False:",
        (f"{FREEZING}::TestModes",),
    ),
    Mistake(
        "files-are-not-synced",
        "durable.py",
        "            os.fsync(file.fileno())\n        temporary.replace(path)",
        "        temporary.replace(path)",
        (DURABLE,),
    ),
    Mistake(
        "the-folder-is-not-synced-after-the-rename",
        "durable.py",
        "        temporary.replace(path)\n        sync_folder(path.parent)",
        "        temporary.replace(path)",
        (DURABLE,),
    ),
    Mistake(
        "the-last-row-of-a-table-is-dropped",
        "data/tables.py",
        "partial(row_in_words, path=path))\n    return x",
        "partial(row_in_words, path=path))\n    return x[:-1]",
        ("tests/data_sets/test_data_tables.py",),
    ),
)
