#!/bin/bash
# ckpt-chaos, which is not ours, kills a training command before, in the middle of and by SIGTERM at the file events of its saves, continues
# it and compares the end with that of a run that nobody disturbed. $1: the Python that has ckpt-chaos. Runs from the checkout's root.
set -eu
export PYTHONPATH="$PWD" OMP_NUM_THREADS=1 CFOL_CHOICES=fixed
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m ckpt_chaos run --work "$work/points" --modes before,torn,term --max-points "${2:-52}" --grace 60 \
    --step-regex "continuing at step (\d+)" --result-cmd "$1 -m tests.hostile.outcome {out}" -- \
    "$1" -m cfol_fast train cfol --dataset fashion-mini --model demo-cnn@0.25 --epochs 2 --out {out} --resume=auto --device cpu \
    --set steps_per_epoch=2 --set batch_size=16 --set checkpoint.steps=1 --set attack.steps=1 --set validation.steps=1 --set test.steps=1
