"""The CUDA engine: kernels (`kernels/`), the code that compiles and launches them, and tuning."""
