"""``nvidia-smi`` as it is inside an environment: arguments in, text and an exit code out.

Pure functions. The layout is that of NVIDIA's nvidia-smi 535, which the tests compare it with.
"""
