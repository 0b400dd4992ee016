// Every kernel of the fat binary: the parts' lists of entry points. Built by nvcc for sm_80 and sm_90a.
#include "attention/entries.h"
#include "operators/entries.h"
