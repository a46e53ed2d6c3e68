"""Write the samples that are shipped ready made, and MANIFEST.json.

    python sample_checkpoints/make_samples.py          writes them here
    python sample_checkpoints/make_samples.py DIR      writes every sample to DIR

Good samples are cut from producers' output by cut_good.py; every faulty one is made from a good one by
quantscope.samples, deterministically. `quantscope samples DIR` does the same as the second form.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from quantscope.samples import list_samples, make_sample, manifest, write_samples
from quantscope.samples.library import SHIPPED_FAULTS

HERE = Path(__file__).parent


def main(arguments: list[str]) -> None:
    if arguments:
        write_samples(Path(arguments[0]))
        return
    for sample in list_samples():
        if sample.name in SHIPPED_FAULTS:
            shutil.rmtree(HERE / sample.name, ignore_errors=True)
            make_sample(sample, HERE / sample.name)
    (HERE / "MANIFEST.json").write_text(json.dumps(manifest(), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
