"""A pretend GPU: tensors whose data lie on the CPU and whose device says `cuda:0`.

It detects, without a GPU, operations that mix tensors of both devices, places where the host waits
for the device or copies to it and blocks, the number of kernels launched, and operations that
cannot be captured in a CUDA graph. The data are real, so control flow is that of a GPU; autocast is
torch's own for CUDA. Triton's kernels, attention and cuDNN's LSTM have stand-ins. Speed, memory,
streams and libraries are not tested. Launches are the operators dispatched except views, each
counted as the number of kernels that torch needs for it: accurate to about a tenth.

    python -m tests.pretend_gpu             compares all cases with bounds.json
    python -m tests.pretend_gpu --lower     lowers the bounds to what is counted now

A case without bounds gets them from `--lower`; to raise a bound, delete its entry first.

It replaces parts of torch, so it runs in a separate process
(`tests/unit/project/test_pretend_gpu.py`).
"""
