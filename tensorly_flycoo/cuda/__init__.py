"""The only place with CUDA: kernels (`*.cu`, `*.cuh`), their loader and their tuning."""
