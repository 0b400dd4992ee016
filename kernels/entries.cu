// Every kernel of the fat binary: the parts' lists of entry points. Built by nvcc for sm_80 and sm_90a.
#if __has_include("attention/entries.h")
#include "attention/entries.h"
#endif
#if __has_include("operators/entries.h")
#include "operators/entries.h"
#endif
