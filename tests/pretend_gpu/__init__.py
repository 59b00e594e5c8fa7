"""A pretend GPU: tensors whose data lie on the CPU and whose device says `cuda:0`.

It shows, without a GPU, where tensors of both devices meet in one operation, where the host waits
for the device or copies to it and blocks, how many kernels are launched, and what a recording as a
CUDA graph would not allow. The data are real, so programs take their true course; autocast is
torch's own for CUDA. Triton's kernels, attention and cuDNN's LSTM have stand-ins. Speed, memory,
streams and libraries are not tested by it. Launches are operators dispatched, views left out, each
as many kernels as torch needs for it: right to about a tenth.

    python -m tests.pretend_gpu             compares all cases with bounds.json
    python -m tests.pretend_gpu --lower     lowers the bounds to what is counted now

A case without bounds gets them by `--lower`; whoever must raise one deletes its entry first.

It replaces parts of torch, so it has a process of its own
(`tests/unit/project/test_pretend_gpu.py`).
"""
