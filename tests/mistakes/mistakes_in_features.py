"""Mistakes in features of pretrained networks."""

from __future__ import annotations

from trying import Mistake

EXTRACTING = "tests/features/test_extracting.py"
PREPROCESSING = "tests/features/test_preprocessing.py"
RESUMING = "tests/features/test_resuming.py"
FOLDER = "tests/features/test_folder.py"
COMMAND = "tests/features/test_command.py"

IN_FEATURES = (
    Mistake(
        "features-not-scaled-by-the-std",
        "data/features/preprocessing.py",
        "1 / (255 * std) for std",
        "1 / 255 for std",
        (PREPROCESSING,),
    ),
    Mistake(
        "features-enlarged-by-nearest-pixels",
        "data/features/preprocessing.py",
        'mode="bilinear", antialias',
        'mode="nearest" if target[0] > height else "bilinear", antialias',
        (PREPROCESSING,),
    ),
    Mistake(
        "features-reduced-without-antialiasing",
        "data/features/preprocessing.py",
        "antialias=target[0] < height or target[1] < width",
        "antialias=False",
        (PREPROCESSING,),
    ),
    Mistake(
        "features-cut-out-of-the-corner",
        "data/features/preprocessing.py",
        "(there - wanted) // 2",
        "(there - wanted) * 0",
        (PREPROCESSING,),
    ),
    Mistake(
        "features-after-the-layer-instead-of-before",
        "data/features/network.py",
        'if self._at == "output":',
        "if True:",
        (EXTRACTING,),
    ),
    Mistake(
        "features-with-a-hook-left-behind",
        "data/features/network.py",
        "            seen.handle.remove()",
        "            pass",
        (EXTRACTING,),
    ),
    Mistake(
        "features-known-without-their-labels",
        "data/features/sources.py",
        "self._labels.add(y)",
        "pass",
        (EXTRACTING,),
    ),
    Mistake(
        "features-of-a-shard-computed-again",
        "data/features/pieces.py",
        "        self._used.add(first)\n        return True",
        "        return False",
        (RESUMING,),
    ),
    Mistake(
        "features-of-another-loader-accepted",
        "data/features/pieces.py",
        "            self._shards.check(first, fingerprint)",
        "            pass",
        (RESUMING,),
    ),
    Mistake(
        "features-lost-by-an-error",
        "data/features/extracting.py",
        "the first error is the one to tell of\n            pieces.save()",
        "the first error is the one to tell of\n            pass",
        (RESUMING,),
    ),
    Mistake(
        "features-of-other-settings-taken-for-finished",
        "data/features/storing.py",
        "if found := first_difference(_identity(there, known), _identity(wanted, known)):",
        "if False:",
        (RESUMING,),
    ),
    Mistake(
        "features-of-damaged-files-read",
        "data/features/files.py",
        'if about.get("sha256") != checksum(rows):',
        "if False:",
        (FOLDER,),
    ),
    Mistake(
        "features-of-another-severity",
        "data/features/sets.py",
        "name=corruption, severity=severity, seed=seed",
        "name=corruption, severity=1, seed=seed",
        (FOLDER,),
    ),
    Mistake(
        "features-of-two-networks-in-one-folder",
        "data/features/folder.py",
        "        _check_folder(place, extractor)\n",
        "",
        (FOLDER,),
    ),
    Mistake(
        "features-deaf-to-signals",
        "commands/features.py",
        "request.signal is not None or time",
        "time",
        (COMMAND,),
    ),
)
