// Static checks that a structure lies in memory as Python fills it.
//
// Python's table (`structs.py`) hands over a macro for each structure, such as FIELD_LAYOUT:
//   SIZE(12)MEMBER(word,0,4)MEMBER(shift,4,4)MEMBER(mask,8,4)
// A member has a name, an offset and a size, in bytes.
#pragma once

#define SIZE(nbytes) static_assert(sizeof(Struct) == (nbytes), "structs.py: size differs");
#define MEMBER(name, offset, nbytes)                            \
    static_assert(__builtin_offsetof(Struct, name) == (offset), \
                  "structs.py: offset of " #name " differs");   \
    static_assert(sizeof(Struct::name) == (nbytes), "structs.py: size of " #name " differs");

#define CHECK_LAYOUT(Type, LAYOUT) \
    struct Type##Check {           \
        using Struct = Type;       \
        LAYOUT                     \
    };
