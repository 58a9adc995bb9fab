/* test_hopper_parts.cu on the emulation. */
#include "tests/gpu/test_hopper_parts.cu"
