// Entry: keep a stream busy for some clock cycles, so that the host can enqueue the kernels to be
// timed before they start. One thread; reads and writes nothing.
extern "C" __global__ void delay(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
