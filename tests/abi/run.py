"""Runs models in the onnxruntime that PYTHONPATH names; `tests/test_abi.py` starts this and compares what it writes.

    run.py LIBRARY FOLDER: for each FOLDER/name.onnx, feeds FOLDER/name.inputs.npz and writes FOLDER/name.outputs.npz

A name is NUMBER-OPERATOR. Every 100th session registers all operators, which takes a while; the others the one they use.

It may import nothing but numpy and onnxruntime: the old releases live with an old numpy.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(library: str, folder: Path) -> None:
    for model in sorted(folder.glob("*.onnx")):
        print(model.stem, flush=True)  # a crash is in the last one named
        number, operator = model.stem.split("-")
        options = ort.SessionOptions()
        if int(number) % 100:
            options.add_session_config_entry("ortops.operators", operator)
        options.register_custom_ops_library(library)
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        with np.load(model.with_suffix(".inputs.npz")) as inputs:
            outputs = session.run(None, dict(inputs))
        np.savez(model.with_suffix(".outputs.npz"), *outputs)
    print(ort.__version__)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
