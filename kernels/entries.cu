// Every kernel of the fat binary: the parts' lists of entry points. Built by nvcc for every architecture of `crates/ops/build.rs`.
#include "attention/entries.h"
#include "operators/entries.h"
