// Checks in a debug build (-D ASSERTIONS): a failed check prints its condition and ends the launch.
#pragma once

#ifdef ASSERTIONS
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line,
                                        const char* function, size_t char_nbytes);

#define ASSERT(condition) \
    ((condition) ? static_cast<void>(0) \
                 : __assertfail(#condition, __FILE__, __LINE__, __func__, sizeof(char)))
#else
#define ASSERT(condition) static_cast<void>(0)
#endif
