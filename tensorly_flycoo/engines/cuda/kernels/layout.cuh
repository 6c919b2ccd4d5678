// Static checks that a structure has the memory layout that Python fills.
//
// Python (`structs.py`) passes a macro for each structure, such as FIELD_LAYOUT:
//   SIZE(12)MEMBER(word,0,4)MEMBER(shift,4,4)MEMBER(mask,8,4)
// A member has a name, an offset and a size, in bytes. NVRTC before about 13.4 cannot check
// offsets; the tests compile with a later one.
#pragma once

#ifdef __has_builtin
#if __has_builtin(__builtin_offsetof)
#define CHECK_OFFSET(name, offset) \
    static_assert(__builtin_offsetof(Struct, name) == (offset), "structs.py: " #name " elsewhere");
#endif
#endif
#ifndef CHECK_OFFSET
#define CHECK_OFFSET(name, offset)
#endif

#define SIZE(nbytes) static_assert(sizeof(Struct) == (nbytes), "structs.py: another size");
#define MEMBER(name, offset, nbytes) \
    CHECK_OFFSET(name, offset)       \
    static_assert(sizeof(Struct::name) == (nbytes), "structs.py: " #name " of another size");

#define CHECK_LAYOUT(Type, LAYOUT) \
    struct Type##Check {           \
        using Struct = Type;       \
        LAYOUT                     \
    };
