#!/usr/bin/env bash
# Everything that needs a GPU, into one folder: builds for the GPU at hand, checks the vendor libraries, tests, runs
# compute-sanitizer, measures. For a machine that has a compiler, PyTorch and onnxruntime-gpu; `make gpu-test` and
# `make gpu-bench` are the same for one that has to install them first.
#
#   tests/gpu/run.sh OUT STEP...        steps: build vendor test sanitize bench
#
# CMAKE_ARGS is passed on. A step that fails does not stop those after it; the exit status tells.
set -u -o pipefail
out=$1; shift
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
build=${BUILD:-build}
export ORTOPS_LIBRARY=$PWD/$build/libortops.so
status=0
libraries=$(python3 - <<'PY'
import importlib.util, pathlib
root = pathlib.Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
print(":".join(sorted({str(p.parent) for p in root.rglob("lib*.so.*")})))
PY
)

step() { # NAME COMMAND...
  local name=$1 began=$SECONDS; shift
  echo "== $name"
  "$@" > "$out/$name.log" 2>&1
  local rc=$?
  tail -n "${TAIL:-25}" "$out/$name.log" | cut -c1-300
  echo "== $name: exit $rc after $((SECONDS - began)) s"
  [ $rc = 0 ] || status=1
  return $rc
}

do_build() {
  cmake -S . -B "$build" -G Ninja -DORTOPS_CUDA=on -DORTOPS_CUDA_ARCHITECTURES="${ARCH:-90}" -DPython_EXECUTABLE="$(command -v python3)" \
    ${CMAKE_ARGS:-} && cmake --build "$build"
}
do_vendor() {
  local include=${CUDNN_INCLUDE:-.carry/include}
  g++ -std=c++20 -Os -fPIC -fvisibility=hidden -DCUDNN_FRONTEND_SKIP_JSON_LIB -Icuda -isystem "$include" \
    -isystem "${CUDA_HOME:-/usr/local/cuda}/include" -c cuda/vendor/cudnn.cc -o "$build/cudnn_check.o" &&
    nvcc -std=c++20 -O2 -arch=native -Icuda tests/gpu/vendor_check.cu cuda/vendor/{cublaslt,library,runtime}.cc \
      "$build/cudnn_check.o" -ldl -o "$build/vendor_check" &&
    LD_LIBRARY_PATH=$libraries "$build/vendor_check"
}
do_test() { python3 -m pytest -m gpu -v -p no:cacheprovider ${PYTEST_ARGS:-}; }
do_sanitize() { # our kernels alone: the others are not ours to check, and checking them takes minutes
  local failed=0
  for tool in memcheck racecheck; do
    ORTOPS_EVERY=${EVERY:-6} ORTOPS_TUNE=0 timeout "${SANITIZE_SECONDS:-240}" compute-sanitizer --tool $tool --error-exitcode 9 \
      --target-processes all --kernel-name kns=ortops python3 -m pytest -m gpu -q -p no:cacheprovider \
      ${SANITIZE_ARGS:-tests/test_ops.py -k test_kernel} || failed=1
  done
  return $failed
}
do_bench() {
  python3 benchmarks/ops.py --out "$out" ${BENCH_ARGS:-} && python3 benchmarks/movement.py --out "$out" &&
    python3 benchmarks/minilm.py --out "$out"
}

for name in "$@"; do step "$name" "do_$name"; done
exit $status
