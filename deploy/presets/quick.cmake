# tests/run quick: no CUDA, neither real nor emulated, one level of instructions, no benchmarks.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(POLYD_TESTS ON CACHE BOOL "")
set(POLYD_BENCH OFF CACHE BOOL "")
set(POLYD_CUDA OFF CACHE STRING "")
set(POLYD_EMULATED OFF CACHE BOOL "")
set(POLYD_CPU_LEVELS portable CACHE STRING "")
