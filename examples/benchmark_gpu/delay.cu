// Entry: keep a stream busy for some clock cycles, so that the host can enqueue what is to be timed
// before it starts. One thread; reads and writes nothing.
extern "C" __global__ void delay(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
